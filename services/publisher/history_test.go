package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// entry is one stored envelope.
type entry struct {
	topic string
	id    int64
	hash  string
}

// acknowledged is a publish that succeeded, with its time.
type acknowledged struct {
	entry
	begun, ended time.Time
}

// read is what one reader saw of a log at one moment: one topic, or all identity
// topics together.
type read struct {
	log     string
	entries []entry
}

// history is what clients saw of a run and what is stored at its end.
type history struct {
	mu           sync.Mutex
	acknowledged []acknowledged
	reads        []read
	final        map[string][]entry // by log, ascending
}

func (h *history) acknowledge(a acknowledged) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acknowledged = append(h.acknowledged, a)
}

func (h *history) saw(r read) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads = append(h.reads, r)
}

// check says which guarantee a history breaks: I1, I2, I3 or I4.
func (h *history) check() error {
	return errors.Join(h.checkReads(), h.checkRows(), h.checkAcknowledged(), h.checkRealTime())
}

// checkReads: every read is a prefix of the final log (I2; I3 for the identity log).
func (h *history) checkReads() error {
	for _, r := range h.reads {
		final := h.final[r.log]
		if len(r.entries) > len(final) || !slices.Equal(r.entries, final[:len(r.entries)]) {
			return fmt.Errorf("a read of %d entries of log %x is no prefix of its %d entries", len(r.entries), r.log, len(final))
		}
	}
	return nil
}

// checkRows: no envelope is stored twice (I4).
func (h *history) checkRows() error {
	seen := map[[2]string]bool{}
	for name, log := range h.final {
		if name == identityLog {
			continue
		}
		for _, e := range log {
			if seen[[2]string{e.topic, e.hash}] {
				return fmt.Errorf("an envelope is stored twice on topic %x", e.topic)
			}
			seen[[2]string{e.topic, e.hash}] = true
		}
	}
	return nil
}

// checkAcknowledged: what was acknowledged is stored as it was answered (I1).
func (h *history) checkAcknowledged() error {
	for _, a := range h.acknowledged {
		if !slices.Contains(h.final[a.topic], a.entry) {
			return fmt.Errorf("an acknowledged envelope, id %d, is not in the log of topic %x", a.id, a.topic)
		}
	}
	return nil
}

// checkRealTime: what was published after an answer comes after it in the log.
func (h *history) checkRealTime() error {
	byLog := map[string][]acknowledged{}
	for _, a := range h.acknowledged {
		byLog[a.topic] = append(byLog[a.topic], a)
		if a.topic[0] == 2 {
			byLog[identityLog] = append(byLog[identityLog], a)
		}
	}
	for name, log := range byLog {
		slices.SortFunc(log, func(a, b acknowledged) int { return int(a.id - b.id) })
		latest := time.Time{} // the latest begin so far, in order of ids
		for _, a := range log {
			if a.ended.Before(latest) {
				return fmt.Errorf("log %x: id %d was answered before a lower id was published", name, a.id)
			}
			if a.begun.After(latest) {
				latest = a.begun
			}
		}
	}
	return nil
}

// identityLog is the log of all identity updates together.
const identityLog = "identity"

// readLog reads a log in one statement.
func readLog(ctx context.Context, db *pgxpool.Pool, log string) ([]entry, error) {
	from, to := []byte(log), append([]byte(log), 0)
	if log == identityLog {
		from, to = []byte{2}, []byte{3}
	}
	rows, err := db.Query(ctx, "SELECT topic, sequence_id, message_hash FROM envelopes WHERE topic >= $1 AND topic < $2 ORDER BY sequence_id", from, to)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var entries []entry
	for rows.Next() {
		var topic, hash []byte
		var e entry
		if err := rows.Scan(&topic, &e.id, &hash); err != nil {
			return nil, err
		}
		e.topic, e.hash = string(topic), string(hash)
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

// The checker itself must be able to fail.
func TestHistoryCheckerFindsEachBreach(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	good := func() *history {
		a, b := entry{"\x02t", 1, "a"}, entry{"\x02t", 2, "b"}
		return &history{
			acknowledged: []acknowledged{{a, at(0), at(1)}, {b, at(2), at(3)}},
			reads:        []read{{"\x02t", nil}, {"\x02t", []entry{a}}, {identityLog, []entry{a, b}}},
			final:        map[string][]entry{"\x02t": {a, b}, identityLog: {a, b}},
		}
	}
	require.NoError(t, good().check())
	for name, doctor := range map[string]func(*history){
		"a row appears below one that was read": func(h *history) { h.reads[1].entries = []entry{{"\x02t", 2, "b"}} },
		"a row vanished":                        func(h *history) { h.final[identityLog] = h.final[identityLog][:1] },
		"an answer without a row":               func(h *history) { h.acknowledged[0].hash = "x" },
		"a row twice":                           func(h *history) { h.final["\x02t"] = append(h.final["\x02t"], entry{"\x02t", 3, "b"}) },
		"ids against the order of answers":      func(h *history) { h.acknowledged[1].begun, h.acknowledged[1].ended = at(-3), at(-2) },
	} {
		t.Run(name, func(t *testing.T) {
			h := good()
			doctor(h)
			require.Error(t, h.check())
		})
	}
}
