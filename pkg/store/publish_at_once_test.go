package store_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// draftsOf is a batch of envelopes named by their payloads, each on the topic
// that its first letter names.
func draftsOf(names ...string) store.Batch {
	batch := store.Batch{Certain: true}
	for _, name := range names {
		batch.Topics = append(batch.Topics, group(int(name[0])))
	}
	slices.SortFunc(batch.Topics, func(a, b topic.Topic) int { return strings.Compare(string(a), string(b)) })
	batch.Topics = slices.Compact(batch.Topics)
	for i, name := range names {
		batch.Drafts = append(batch.Drafts, store.Draft{
			Topic: slices.Index(batch.Topics, group(int(name[0]))), Hash: envelope.HashOf([]byte(name)),
			Payload: []byte(name), Retention: time.Duration(i%2) * time.Hour, IsCommitOrProposal: i%3 == 0,
		})
	}
	return batch
}

func keyOf(batch store.Batch, draft int) store.Key {
	d := batch.Drafts[draft]
	return store.Key{Topic: batch.Topics[d.Topic], Hash: d.Hash}
}

// stored is what the table says of an envelope.
type stored struct {
	meta    envelope.Meta
	payload string
}

func contents(t *testing.T, conn *pgx.Conn) (rows map[store.Key]stored, heads map[topic.Topic][2]topic.SequenceID) {
	t.Helper()
	rows, heads = map[store.Key]stored{}, map[topic.Topic][2]topic.SequenceID{}
	found, err := conn.Query(t.Context(), `SELECT topic, sequence_id, server_ns, coalesce(expiry_ns, 0), message_hash, is_commit_or_proposal, payload
		FROM envelopes WHERE commit_xid = xmin::text::bigint`)
	require.NoError(t, err)
	var name, hash, payload []byte
	var m envelope.Meta
	_, err = pgx.ForEachRow(found, []any{&name, &m.SequenceID, &m.ServerNS, &m.ExpiryNS, &hash, &m.IsCommitOrProposal, &payload}, func() error {
		m.Topic, m.MessageHash = topic.Topic(name), envelope.MessageHash(hash)
		rows[store.Key{Topic: m.Topic, Hash: m.MessageHash}] = stored{m, string(payload)}
		return nil
	})
	require.NoError(t, err)
	found, err = conn.Query(t.Context(), `SELECT topic, previous_sequence_id, last_sequence_id FROM topic_heads`)
	require.NoError(t, err)
	var head [2]topic.SequenceID
	_, err = pgx.ForEachRow(found, []any{&name, &head[0], &head[1]}, func() error {
		heads[topic.Topic(name)] = head
		return nil
	})
	require.NoError(t, err)
	return rows, heads
}

// What is told is what the tables have, and both are what a model of the tables
// says. A batch that holds anything stored already changes nothing.
//
// Proves API-030.
func TestAtOnceStoresAllOrNothing(t *testing.T) {
	conn := connect(t, pgtest.MigratedPrimary(t, migrate).PrimaryURL)
	random := rand.New(rand.NewPCG(1, 2))
	rows, heads := map[store.Key]stored{}, map[topic.Topic][2]topic.SequenceID{}
	model := map[topic.Topic]topic.SequenceID{} // the head of each
	last, refused := topic.SequenceID(0), 0
	for round := range 300 {
		names := map[string]bool{}
		for range 1 + random.IntN(12) {
			names[fmt.Sprintf("%c %d", 'a'+random.IntN(4), random.IntN(2000))] = true
		}
		batch := draftsOf(slices.Collect(maps.Keys(names))...)
		known := false
		for i := range batch.Drafts {
			_, ok := rows[keyOf(batch, i)]
			known = known || ok
		}
		outcome, err := store.StoreAtOnce(t.Context(), conn, batch)
		if known {
			requireConflict(t, err)
			refused++
			continue
		}
		require.NoError(t, err, "round %d", round)
		for i, draft := range batch.Drafts {
			key, result := keyOf(batch, i), outcome.Drafts[i]
			require.Greater(t, result.Meta.SequenceID, last, "ids are in the order of the request")
			last = result.Meta.SequenceID
			meta := envelope.Meta{Topic: key.Topic, SequenceID: last, ServerNS: outcome.Drafts[0].Meta.ServerNS, MessageHash: key.Hash, IsCommitOrProposal: draft.IsCommitOrProposal}
			if draft.Retention > 0 {
				meta.ExpiryNS = meta.ServerNS + draft.Retention.Nanoseconds()
			}
			require.Equal(t, store.Result{Meta: meta, New: true, Previous: model[key.Topic]}, result)
			rows[key], model[key.Topic] = stored{meta, string(draft.Payload)}, last
		}
		for _, name := range batch.Topics {
			heads[name] = [2]topic.SequenceID{heads[name][1], model[name]}
		}
	}
	require.Greater(t, refused, 30)
	require.Less(t, refused, 270)
	tableRows, tableHeads := contents(t, conn)
	require.Equal(t, rows, tableRows)
	require.Equal(t, heads, tableHeads)
}

// requireConflict checks the failure of a batch that has to take its locks first.
func requireConflict(t *testing.T, err error) {
	t.Helper()
	var failure *pgconn.PgError
	require.ErrorAs(t, err, &failure)
	require.Equal(t, "40001", failure.Code)
	require.NotContains(t, failure.Error()+failure.Detail, `\x`, "the server's log names no topic")
}

// other is a publish of another process, in steps.
type other struct {
	t  *testing.T
	tx pgx.Tx
	on topic.Topic
}

// holdHead begins a publish that holds the head of a topic.
func holdHead(t *testing.T, url string, on topic.Topic) *other {
	t.Helper()
	tx, err := connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(t.Context(), `INSERT INTO topic_heads VALUES ($1, 0) ON CONFLICT (topic) DO UPDATE SET last_sequence_id = 0 WHERE false`, []byte(on))
	require.NoError(t, err)
	return &other{t, tx, on}
}

func (o *other) takeID() (id topic.SequenceID) {
	o.t.Helper()
	require.NoError(o.t, o.tx.QueryRow(o.t.Context(), "SELECT nextval('envelope_sequence')").Scan(&id))
	return id
}

func (o *other) commit(id topic.SequenceID, payload string) {
	o.t.Helper()
	hash := envelope.HashOf([]byte(payload))
	_, err := o.tx.Exec(o.t.Context(), `INSERT INTO envelopes SELECT $1, $2, 1, NULL, $3, false, pg_current_xact_id()::text::bigint, $4`,
		[]byte(o.on), id, hash[:], []byte(payload))
	require.NoError(o.t, err)
	_, err = o.tx.Exec(o.t.Context(), `UPDATE topic_heads SET last_sequence_id = $2 WHERE topic = $1`, []byte(o.on), id)
	require.NoError(o.t, err)
	require.NoError(o.t, o.tx.Commit(o.t.Context()))
}

// awaitLock waits until a session of the database waits for a lock.
func awaitLock(t *testing.T, url string) {
	t.Helper()
	conn := connect(t, url)
	require.Eventually(t, func() bool {
		var waits bool
		require.NoError(t, conn.QueryRow(t.Context(),
			`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits))
		return waits
	}, time.Minute, time.Millisecond, "nothing waits for the lock")
}

// What another process commits between our snapshot and our lock either lies
// below all of our ids, and is told as the previous head, or nothing is stored.
func TestAtOnceMeetsAnotherProcess(t *testing.T) {
	for _, c := range []struct {
		name string
		// early says that the other took its id before we took ours.
		early bool
		// stored is on the topic before, by another publish.
		stored, others, ours string
		conflict             bool
	}{
		{"its ids are below ours", true, "a stored", "a other", "a ours", false},
		{"its ids are below ours on a new topic", true, "", "a other", "a ours", false},
		{"its ids are above ours", false, "a stored", "a other", "a ours", true},
		{"its ids are above ours on a new topic", false, "", "a other", "a ours", true},
		{"it stores the same envelope below our ids", true, "a stored", "a same", "a same", true},
		{"it stores the same envelope above our ids", false, "a stored", "a same", "a same", true},
	} {
		for _, beside := range [][]string{nil, {"b beside"}} { // a statement for one envelope, and one for more
			t.Run(fmt.Sprint(strings.ReplaceAll(c.name, " ", "_"), len(beside)), func(t *testing.T) {
				url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
				conn := connect(t, url)
				if c.stored != "" {
					_, err := store.StoreAtOnce(t.Context(), conn, draftsOf(c.stored))
					require.NoError(t, err)
				}
				o := holdHead(t, url, group('a'))
				var id topic.SequenceID
				if c.early {
					id = o.takeID()
				}
				type result struct {
					outcome store.Outcome
					err     error
				}
				done := make(chan result, 1)
				batch := draftsOf(append([]string{c.ours}, beside...)...)
				go func() {
					outcome, err := store.StoreAtOnce(t.Context(), conn, batch)
					done <- result{outcome, err}
				}()
				awaitLock(t, url)
				if !c.early {
					id = o.takeID()
				}
				o.commit(id, c.others)
				r := <-done
				rows, heads := contents(t, conn)
				if c.conflict {
					requireConflict(t, r.err)
					require.NotContains(t, heads, group('b'), "all or nothing")
					require.Equal(t, id, heads[group('a')][1])
					return
				}
				require.NoError(t, r.err)
				ours := r.outcome.Drafts[0]
				require.Equal(t, id, ours.Previous, "the previous head is the other's")
				require.Greater(t, ours.Meta.SequenceID, id)
				require.Equal(t, ours.Meta.SequenceID, heads[group('a')][1])
				require.Contains(t, rows, keyOf(batch, 0))
			})
		}
	}
}

// storeWhatIsNew decides for every draft that is not stored.
func storeWhatIsNew(batch store.Batch) func(store.Locked) (store.Verdict, error) {
	return func(found store.Locked) (verdict store.Verdict, _ error) {
		for i := range batch.Drafts {
			if _, ok := found.Stored[i]; !ok {
				verdict.Store = append(verdict.Store, i)
			}
		}
		return verdict, nil
	}
}

// publishAll publishes a batch as the publisher does, and says whether it was
// asked what to store.
func publishAll(t *testing.T, p *store.Publisher, batch store.Batch) (asked bool) {
	t.Helper()
	outcome, err := p.Commit(t.Context(), batch, func(found store.Locked) (store.Verdict, error) {
		asked = true
		return storeWhatIsNew(batch)(found)
	})
	require.NoError(t, err)
	for i := range batch.Drafts {
		require.NotZero(t, outcome.Drafts[i].Meta.SequenceID)
	}
	return asked
}

func openPublisher(t *testing.T, url string) *store.Publisher {
	t.Helper()
	p, err := store.OpenPublisher(config.Secret(url), store.PoolConfig{MaxConns: 2, ConnectTimeout: time.Minute, AcquireTimeout: time.Minute, StatementTimeout: time.Minute}, nil)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// A publish that cannot be done at once is done with its locks taken first.
func TestAPublishThatMeetsAnotherIsStored(t *testing.T) {
	url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	p := openPublisher(t, url)
	require.False(t, publishAll(t, p, draftsOf("a first")), "stored at once")
	o := holdHead(t, url, group('a'))
	done := make(chan bool, 1)
	// The time for one lock is longer than that of the first attempt, so that the
	// test does not depend on how soon the other commits.
	batch := draftsOf("a second")
	batch.LockTimeout = time.Minute
	go func() { done <- publishAll(t, p, batch) }()
	awaitLock(t, url)
	id := o.takeID()
	o.commit(id, "a other")
	require.True(t, <-done, "stored with its locks first")
	rows, heads := contents(t, connect(t, url))
	require.Len(t, rows, 3)
	require.Greater(t, heads[group('a')][1], id)
	require.Equal(t, id, heads[group('a')][0])
}

// Whoever sends again and again what is stored cannot make a publisher write in
// vain each time.
func TestAfterACopyBatchesLookFirst(t *testing.T) {
	url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	p := openPublisher(t, url)
	require.False(t, publishAll(t, p, draftsOf("a copied")))
	require.True(t, publishAll(t, p, draftsOf("a copied", "a new")), "it could not be stored at once")
	for i := range store.Caution {
		require.True(t, publishAll(t, p, draftsOf(fmt.Sprint("a later ", i))), "batch %d looks first", i)
	}
	require.False(t, publishAll(t, p, draftsOf("a last")))
	rows, _ := contents(t, connect(t, url))
	require.Len(t, rows, 3+store.Caution)
}

// A publisher that stalls while it holds locks loses them to others.
func TestAStalledPublisherLosesItsLocks(t *testing.T) {
	url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	p := openPublisher(t, url)
	require.False(t, publishAll(t, p, draftsOf("a first")))
	batch := draftsOf("a second")
	batch.Certain = false // so that there is something to decide while the locks are held
	_, err := p.Commit(t.Context(), batch, func(found store.Locked) (store.Verdict, error) {
		other := connect(t, url)
		_, err := other.Exec(t.Context(), "SELECT FROM topic_heads WHERE topic = $1 FOR UPDATE", []byte(batch.Topics[0]))
		require.NoError(t, err)
		return storeWhatIsNew(batch)(found)
	})
	require.Equal(t, fault.Unavailable, fault.KindOf(err), "%v", err)
	rows, _ := contents(t, connect(t, url))
	require.Len(t, rows, 1)
}

// Both ways of writing say the same of what they stored, and store what they say.
func TestBothWaysOfWritingHaveOneOutcome(t *testing.T) {
	url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	p, conn := openPublisher(t, url), connect(t, url)
	for _, certain := range []bool{true, false} {
		for _, names := range [][]string{{"a 1"}, {"a 2", "b 1", "a 3", "a 4", "b 2"}} {
			for i := range names {
				names[i] += fmt.Sprint(certain)
			}
			batch := draftsOf(names...)
			batch.Certain = certain
			_, before := contents(t, conn)
			outcome, err := p.Commit(t.Context(), batch, storeWhatIsNew(batch))
			require.NoError(t, err)
			rows, after := contents(t, conn)
			previous := map[topic.Topic]topic.SequenceID{}
			for name, heads := range before {
				previous[name] = heads[1]
			}
			for i, result := range outcome.Drafts {
				key := keyOf(batch, i)
				require.Equal(t, stored{result.Meta, names[i]}, rows[key])
				require.True(t, result.New)
				require.Equal(t, previous[key.Topic], result.Previous)
				previous[key.Topic] = result.Meta.SequenceID
			}
			for name, heads := range after {
				require.Equal(t, previous[name], heads[1])
			}
			require.NotZero(t, outcome.Lineage)
		}
	}
}

// Proves API-036.
func TestWhatMustNotHappenFailsTheWhole(t *testing.T) {
	batch := draftsOf("a 1", "a 2") // the second has a retention
	good := store.Locked{Heads: []topic.SequenceID{7}, IDs: []topic.SequenceID{8, 9}}
	_, _, err := good.Settle(&batch, []int{0, 1})
	require.NoError(t, err)
	for name, change := range map[string]func(*store.Locked){
		"an id at the head":          func(l *store.Locked) { l.Heads[0] = 8 },
		"an id at the one before it": func(l *store.Locked) { l.IDs[1] = 8 },
		"an expiry beyond all time":  func(l *store.Locked) { l.ServerNS = math.MaxInt64 - 1 },
	} {
		bad := store.Locked{Heads: slices.Clone(good.Heads), IDs: slices.Clone(good.IDs)}
		change(&bad)
		_, _, err := bad.Settle(&batch, []int{0, 1})
		require.Equal(t, fault.Broken, fault.KindOf(err), name)
	}
}
