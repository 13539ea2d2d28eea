package delivery

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// lagging is a simulation in steps of a millisecond: a replica that shows rows
// when they are lag old, reads that take two steps, a sweep every 250.
type lagging struct {
	*rig
	lag    int
	clock  int
	stored map[topic.SequenceID]int // when
	ready  []due
}

type due struct {
	at      int
	fetch   *Fetch
	results []Result
}

func (l *lagging) step() {
	l.clock++
	for _, f := range l.fetches {
		results := make([]Result, len(f.Requests))
		for i, q := range f.Requests {
			for _, e := range l.above(q) {
				if l.stored[e.SequenceID]+l.lag <= l.clock && len(results[i].Envelopes) < q.MaxRows {
					results[i].Envelopes = append(results[i].Envelopes, e)
				}
			}
			results[i].More = len(results[i].Envelopes) == q.MaxRows
		}
		l.ready = append(l.ready, due{l.clock + 2, f, results})
	}
	l.fetches = nil
	for len(l.ready) > 0 && l.ready[0].at <= l.clock {
		d := l.ready[0]
		l.ready = l.ready[1:]
		l.do(func(e *Engine) { e.Page(d.fetch, d.results) })
	}
	if l.clock%250 == 0 {
		l.tick(250 * time.Millisecond)
	}
}

// With a replica that lags by a steady 50 ms and one notice in a thousand lost,
// nearly everything still comes straight from notices, and what does not comes
// with the next sweep.
func TestALaggingReplicaAndLostNoticesKeepStreamsLive(t *testing.T) {
	l := &lagging{rig: newRig(t, testConfig()), lag: 50, stored: map[topic.SequenceID]int{}}
	l.engine.config.SessionBytes, l.engine.config.FrameBytes = 1<<20, 1<<16
	random := rand.New(rand.NewPCG(1, 2))
	all := names(20)
	s := l.open()
	l.add(s, all...)
	live, total, slowest := 0, 0, 0
	const steps = 60_000
	for range steps {
		l.step()
		previous, e := l.store(all[random.IntN(len(all))], 20)
		l.stored[e.SequenceID] = l.clock
		if random.IntN(1000) > 0 {
			name := all[0]
			for _, n := range all {
				if rows := l.rows[n]; len(rows) > 0 && rows[len(rows)-1] == e {
					name = n
				}
			}
			l.do(func(engine *Engine) {
				engine.Notice(name, previous, &Envelope{SequenceID: e.SequenceID, Encoded: e.Encoded})
			})
		}
		for f := l.next(s); f != nil; f = l.next(s) {
			live += f.Live
			total += len(f.Envelopes)
			for _, e := range f.Envelopes {
				slowest = max(slowest, l.clock-l.stored[e.SequenceID])
			}
		}
	}
	t.Logf("%d of %d live, the slowest after %d ms", live, total, slowest)
	require.Greater(t, total, steps*99/100)
	require.Greater(t, float64(live)/float64(total), 0.99)
	require.Less(t, slowest, 700)
}

// A read that was under way when the head rose proves no lag: the next one
// follows at once, not with the next sweep.
func TestAReadUnderWayWhenTheHeadRosePromptsAnother(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(1)
	s := r.open()
	r.add(s, all...)
	require.Equal(t, Applied, r.next(s).Kind)
	announce := func() {
		previous, e := r.store(all[0], 100)
		r.do(func(engine *Engine) { engine.Notice(all[0], previous, &Envelope{SequenceID: e.SequenceID}) })
	}
	announce()
	f := r.fetches[0]
	r.fetches = nil
	stale := []Result{{Envelopes: []*Envelope{r.rows[all[0]][0]}}}
	announce()
	r.do(func(e *Engine) { e.Page(f, stale) })
	require.Len(t, r.fetches, 1)
	r.page()
	require.Len(t, r.next(s).Envelopes, 1)
	require.Len(t, r.next(s).Envelopes, 1)

	other := r.open()
	r.add(other, all...)
	require.Equal(t, Applied, r.next(other).Kind)
	old := r.fetches[0]
	r.fetches = nil
	announce() // s falls behind while a read for other is under way
	require.Len(t, r.fetches, 1, "it must not join a read that is older than the head")
	r.do(func(e *Engine) { e.FetchFailed(old) })
	r.page()
	require.Len(t, r.next(s).Envelopes, 1)
}

// Streams at several positions of one long topic are each served by reads of their
// own: none waits until another one has come as far. A newcomer is always there.
func TestFloorsOnOneTopicDoNotWaitForEachOther(t *testing.T) {
	r := newRig(t, testConfig())
	name := names(1)[0]
	const rows, rowBytes = 10_000, 100
	for range rows {
		r.store(name, rowBytes)
	}
	perPage := r.engine.config.PageBytes / rowBytes
	missing := map[*Session]int{}
	join := func(owed int) *Session {
		s := r.open()
		r.update(s, Update{Adds: []Add{{Topic: name, Cursor: topic.SequenceID(rows - owed)}}})
		return s
	}
	newcomer := join(rows)
	for _, owed := range []int{10, 200, 1000} {
		missing[join(owed)] = owed
	}
	pages := 0
	for len(missing) > 0 {
		r.page()
		pages++
		for r.next(newcomer) != nil {
		}
		if pages%50 == 0 {
			newcomer = join(rows)
		}
		for s := range missing {
			for f := r.next(s); f != nil; f = r.next(s) {
				missing[s] -= len(f.Envelopes)
			}
			if missing[s] == 0 {
				delete(missing, s)
			}
		}
		// The longest of the three, beside the others and all newcomers.
		require.Less(t, pages, 20*1000/perPage, "not served yet: %v", slices.Collect(maps.Values(missing)))
	}
	t.Logf("%d pages", pages)
}

func TestALongTopicGetsOneFrameATurn(t *testing.T) {
	config := testConfig()
	config.PageTopics = 1
	r := newRig(t, config)
	all := names(2)
	r.store(all[0], 999)
	r.store(all[0], 1100)
	r.store(all[1], 10)
	s := r.open()
	r.add(s, all...)
	require.Equal(t, Applied, r.next(s).Kind)
	var order []topic.SequenceID
	for len(order) < 3 {
		f := r.next(s)
		if f == nil {
			r.page()
			continue
		}
		for _, e := range f.Envelopes {
			order = append(order, e.SequenceID)
		}
	}
	require.Equal(t, []topic.SequenceID{1, 3, 2}, order)
}
