package store_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// The lag is 0 on a primary and on a replica that is up to date, however long
// nothing happens, and grows while a replica does not replay what it received.
func TestReplicaLag(t *testing.T) {
	primary, replica := pgtest.Cluster(t)
	pgtest.WaitReplayed(t, primary, replica)
	lagOf := func(url string) func() time.Duration {
		pool, err := store.Open(secret(url), poolConfig, store.ForReads()...)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return func() time.Duration {
			lag, err := pool.ReplicaLag(t.Context())
			require.NoError(t, err)
			return lag
		}
	}
	onPrimary, onReplica := lagOf(primary.URL("postgres")), lagOf(replica.URL("postgres"))
	require.Zero(t, onPrimary())
	eventually(t, "no lag", func() bool { return onReplica() == 0 })

	execute := func(url, sql string) {
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), sql)
		require.NoError(t, err)
		require.NoError(t, conn.Close(t.Context()))
	}
	execute(replica.URL("postgres"), "SELECT pg_wal_replay_pause()")
	execute(primary.URL("postgres"), "CREATE TABLE lagging (n int)")
	eventually(t, "a growing lag", func() bool { return onReplica() > 300*time.Millisecond })
	require.Zero(t, onPrimary())
	execute(replica.URL("postgres"), "SELECT pg_wal_replay_resume()")
	eventually(t, "no lag again", func() bool { return onReplica() == 0 })
}
