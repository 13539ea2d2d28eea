package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// sweepAll reads all pages of a window.
func sweepAll(t *testing.T, pool *store.InstancePool, low uint64, limit int) ([]store.SweepRow, uint64) {
	t.Helper()
	window := store.SweepWindow{Low: low}
	var rows []store.SweepRow
	for {
		page, err := pool.Sweep(t.Context(), window, limit)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Rows), limit)
		if window.High != 0 {
			require.Equal(t, window.High, page.High)
		}
		rows = append(rows, page.Rows...)
		if !page.More {
			return rows, page.High
		}
		window.High, window.After = page.High, page.Rows[len(page.Rows)-1]
	}
}

// begin opens a transaction that has an id and one row.
func begin(t *testing.T, conn *pgx.Conn, name topic.Topic) (pgx.Tx, topic.SequenceID) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx, insert(t, tx, name, []byte(name))
}

// On a primary and on a hot standby, a row is in exactly one window: the first
// that ends after its transaction did, and not before.
func TestEveryRowIsInOneWindow(t *testing.T) {
	// The window stands still while any transaction of the cluster is open, so
	// this test owns its servers.
	primary, replica := pgtest.OwnCluster(t, map[string]string{"fsync": "off"})
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	conn, slow := connect(t, primary.URL("postgres")), connect(t, primary.URL("postgres"))
	pgtest.WaitReplayed(t, primary, replica)
	pools := map[string]*store.InstancePool{}
	lows := map[string]uint64{}
	for name, url := range map[string]string{"primary": primary.URL("postgres"), "replica": replica.URL("postgres")} {
		pool, base := openInstance(t, url)
		pools[name], lows[name] = pool, base.Xmin
	}
	next := func(want ...topic.SequenceID) {
		t.Helper()
		pgtest.WaitReplayed(t, primary, replica)
		for name, pool := range pools {
			got := []topic.SequenceID{}
			// The end of a rolled back transaction reaches a standby late.
			eventually(t, "the rows of a window", func() bool {
				rows, high := sweepAll(t, pool, lows[name], 2)
				for _, row := range rows {
					got = append(got, row.SequenceID)
				}
				require.GreaterOrEqual(t, high, lows[name])
				lows[name] = high
				return len(got) >= len(want)
			})
			require.ElementsMatch(t, want, got, name)
		}
	}
	next()
	a, b := insert(t, conn, group(1), []byte("a")), insert(t, conn, group(2), []byte("b"))
	next(a, b)
	next()

	tx, held := begin(t, slow, group(3))
	after := insert(t, conn, group(1), []byte("c"))
	// The standby learns of the running transaction from the log; its rows may
	// not be in a window before it has ended.
	next()
	require.NoError(t, tx.Commit(t.Context()))
	next(held, after)

	tx, _ = begin(t, slow, group(4))
	after = insert(t, conn, group(1), []byte("d"))
	require.NoError(t, tx.Rollback(t.Context()))
	next(after)
}

// A transaction tells the newest sequence id of each of its topics, whatever
// the length of a page.
func TestASweepPagesThroughOneTransaction(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	pool, base := openInstance(t, db.PrimaryURL)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	want := map[topic.Topic]topic.SequenceID{}
	for i := range 40 {
		want[group(i%10)] = insert(t, tx, group(i%10), fmt.Append(nil, i))
	}
	require.NoError(t, tx.Commit(t.Context()))
	for _, limit := range []int{1, 3, 10, 11} {
		got := map[topic.Topic]topic.SequenceID{}
		require.Eventually(t, func() bool { // other tests of this server hold the window back
			rows, _ := sweepAll(t, pool, base.Xmin, limit)
			for _, row := range rows {
				require.EqualValues(t, 4, row.Envelopes)
				got[row.Topic] = row.SequenceID
			}
			return len(rows) > 0
		}, 20*time.Second, 10*time.Millisecond)
		require.Equal(t, want, got)
	}
}

// While an open transaction holds the window back, the hint shows what commits.
func TestAHintShowsWhatTheWindowMayNot(t *testing.T) {
	db := pgtest.Migrated(t, migrate)
	conn, slow := connect(t, db.PrimaryURL), connect(t, db.PrimaryURL)
	pool, base := openInstance(t, db.ReplicaURL)
	begin(t, slow, group(1))
	before, err := pool.Hint(t.Context(), base.Xmin, 100)
	require.NoError(t, err)
	stored := insert(t, conn, group(2), []byte("a"))
	insert(t, conn, group(2), []byte("b"))
	primary, replica := pgtest.Cluster(t)
	pgtest.WaitReplayed(t, primary, replica)

	page, err := pool.Sweep(t.Context(), store.SweepWindow{Low: base.Xmin}, 100)
	require.NoError(t, err)
	require.Empty(t, page.Rows)
	hint, err := pool.Hint(t.Context(), before.Xmax, 100)
	require.NoError(t, err)
	require.Len(t, hint.Rows, 2)
	require.Equal(t, stored, hint.Rows[0].SequenceID)
	require.Greater(t, hint.Xmax, hint.Rows[1].CommitXID)
	hint, err = pool.Hint(t.Context(), hint.Xmax, 100)
	require.NoError(t, err)
	require.Empty(t, hint.Rows)
	limited, err := pool.Hint(t.Context(), before.Xmax, 1)
	require.NoError(t, err)
	require.Len(t, limited.Rows, 1)
	require.True(t, limited.More)
}

// A dump carries the transaction ids of the cluster that it was taken from, which
// may lie far above those of the cluster that it was restored into. While a
// transaction is open there, hints look at none of those rows.
func TestAHintReadsNothingOfARestoredDump(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn, slow := connect(t, db.PrimaryURL), connect(t, db.PrimaryURL)
	pool, base := openInstance(t, db.PrimaryURL)
	const restored = 20_000
	_, err := conn.Exec(t.Context(), `INSERT INTO envelopes SELECT $1, 1000000 + n, 0, NULL, sha256(int8send(n)), false, 4000000000 + n, ''
		FROM generate_series(1, $2::integer) AS n`, []byte(group(9)), restored)
	require.NoError(t, err)
	begin(t, slow, group(1))
	stored := insert(t, conn, group(2), []byte("a"))

	before := indexReads(t, conn)
	page, err := pool.Hint(t.Context(), base.Xmin, restored)
	require.NoError(t, err)
	require.False(t, page.More)
	require.Len(t, page.Rows, 1)
	require.Equal(t, stored, page.Rows[0].SequenceID)
	require.Less(t, page.Rows[0].CommitXID, page.Xmax)
	pool.Close() // its statistics are told by then
	require.Less(t, indexReads(t, conn)-before, int64(100), "entries read of the index")
}

// indexReads is how many entries the sweep's index has given so far. A session
// tells its figures when it ends, at the latest.
func indexReads(t *testing.T, conn *pgx.Conn) (entries int64) {
	t.Helper()
	_, err := conn.Exec(t.Context(), "SELECT pg_stat_clear_snapshot(), pg_stat_force_next_flush()")
	require.NoError(t, err)
	const others = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'xmtp-backend'`
	eventually(t, "the end of sessions", func() bool {
		var open int64
		require.NoError(t, conn.QueryRow(t.Context(), others).Scan(&open))
		return open == 0
	})
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_stat_get_tuples_returned('envelopes_commit_xid_idx'::regclass)").Scan(&entries))
	return entries
}

// One transaction of very many envelopes is one row of a hint, but as much to read
// as any others.
func TestAHintLooksAtABoundedNumberOfEnvelopes(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn, slow := connect(t, db.PrimaryURL), connect(t, db.PrimaryURL)
	pool, base := openInstance(t, db.PrimaryURL)
	begin(t, slow, group(1))
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	for i := range 10 {
		insert(t, tx, group(2), fmt.Append(nil, i))
	}
	require.NoError(t, tx.Commit(t.Context()))
	for limit, seen := range map[int]int64{4: 4, 10: 10, 11: 10} {
		page, err := pool.Hint(t.Context(), base.Xmin, limit)
		require.NoError(t, err)
		require.Len(t, page.Rows, 1)
		require.Equal(t, seen, page.Rows[0].Envelopes)
		require.Equal(t, limit <= 10, page.More)
	}
}
