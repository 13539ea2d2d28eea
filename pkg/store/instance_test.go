package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// changed is the typed cause of an error, nil for another one.
func changed(err error) *store.InstanceChangedError {
	var cause *store.InstanceChangedError
	if errors.As(err, &cause) {
		return cause
	}
	return nil
}

// eventually polls until done has no more to wait for.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, 30*time.Second, 20*time.Millisecond, what)
}

func readHead(t testing.TB, pool *store.InstancePool) error {
	_, err := pool.Heads(t.Context(), []topic.Topic{group(1)})
	return err
}

func TestNothingIsReadBeforeThePin(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	pool, err := store.OpenInstance(secret(db.PrimaryURL), poolConfig)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.Equal(t, fault.Unavailable, fault.KindOf(readHead(t, pool)))
	_, err = pool.Pin(t.Context())
	require.NoError(t, err)
	require.NoError(t, readHead(t, pool))
	require.NoError(t, pool.Verify(t.Context()))
}

func TestADatabaseBelowTheSchemaIsUnavailable(t *testing.T) {
	pin := func(url string) error {
		pool, err := store.OpenInstance(secret(url), poolConfig)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		_, err = pool.Pin(t.Context())
		return err
	}
	err := pin(pgtest.Database(t))
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	require.ErrorContains(t, err, "schema version 0, expected at least")

	db := pgtest.MigratedPrimary(t, migrate)
	require.NoError(t, pin(db.PrimaryURL))
	_, err = connect(t, db.PrimaryURL).Exec(t.Context(), `DELETE FROM goose_db_version WHERE version_id >= $1`, store.LowestSchema)
	require.NoError(t, err)
	err = pin(db.PrimaryURL)
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	require.ErrorContains(t, err, fmt.Sprintf("schema version %d, expected at least %d", store.LowestSchema-1, store.LowestSchema))
}

func TestAnotherClustersEnvelopesAreRefused(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	pool, base := openInstance(t, db.PrimaryURL)
	_, err := conn.Exec(t.Context(), `INSERT INTO lineage (system_identifier, timeline, server_started) VALUES ($1, 1, now())`, base.Instance.SystemIdentifier)
	require.NoError(t, err)
	_, err = pool.Pin(t.Context())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `UPDATE lineage SET system_identifier = system_identifier + 1`)
	require.NoError(t, err)
	_, err = pool.Pin(t.Context())
	require.ErrorIs(t, err, store.ErrForeign)
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
}

func TestPrimaryAndReplicaAreInstancesOfOneLineage(t *testing.T) {
	db := pgtest.Migrated(t, migrate)
	_, primary := openInstance(t, db.PrimaryURL)
	_, replica := openInstance(t, db.ReplicaURL)
	require.True(t, primary.Instance.SameLineage(replica.Instance))
	require.NotEqual(t, primary.Instance.Address, replica.Instance.Address)
	require.NotZero(t, primary.Instance.SystemIdentifier)
	require.EqualValues(t, 1, primary.Instance.Timeline)
	require.WithinDuration(t, time.Now(), primary.Instance.PostmasterStart, time.Hour)
}

// After a restart connections are refused until the owner pins the new run; the
// lineage says that its streams may go on.
func TestARestartIsNoticed(t *testing.T) {
	primary := pgtest.OwnPrimary(t, map[string]string{"fsync": "off"})
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	pool, before := openInstance(t, primary.URL("postgres"))
	require.NoError(t, readHead(t, pool))
	for _, mode := range []pglocal.Mode{pglocal.Fast, pglocal.Immediate} {
		require.NoError(t, primary.Stop(mode))
		require.Equal(t, fault.Unavailable, fault.KindOf(readHead(t, pool)))
		_, err := pool.Pin(t.Context())
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
		require.NoError(t, primary.Start(t.Context()))
		var cause *store.InstanceChangedError
		eventually(t, "the restart to be noticed", func() bool {
			err := readHead(t, pool)
			require.Equal(t, fault.Unavailable, fault.KindOf(err))
			cause = changed(err)
			return cause != nil
		})
		require.True(t, cause.Pinned.SameLineage(cause.Seen))
		require.False(t, cause.Pinned.PostmasterStart.Equal(cause.Seen.PostmasterStart))
		after, err := pool.Pin(t.Context())
		require.NoError(t, err)
		require.Greater(t, after.Epoch, before.Epoch)
		require.True(t, after.Instance.SameLineage(before.Instance))
		require.NoError(t, readHead(t, pool))
		before = after
	}
}

// A standby that is promoted keeps its connections; so does one that follows
// another primary. Both end up on another timeline.
func TestAnotherTimelineIsNoticed(t *testing.T) {
	primary, first := pgtest.OwnCluster(t, map[string]string{"fsync": "off"})
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	pgtest.WaitReplayed(t, primary, first)
	cascaded := pgtest.OwnReplica(t, first, map[string]string{"fsync": "off"})

	promoted, before := openInstance(t, first.URL("postgres"))
	follower, _ := openInstance(t, cascaded.URL("postgres"))
	require.EqualValues(t, 1, before.Instance.Timeline)
	require.NoError(t, readHead(t, promoted))
	require.NoError(t, first.Promote(t.Context()))
	for name, pool := range map[string]*store.InstancePool{"promoted": promoted, "follower": follower} {
		var err error
		eventually(t, "the new timeline of the "+name, func() bool { err = pool.Verify(t.Context()); return changed(err) != nil })
		require.False(t, changed(err).Pinned.SameLineage(changed(err).Seen), "%s: %+v", name, changed(err))
		require.NotNil(t, changed(readHead(t, pool)), "reads stop until the next pin")
		after, err := pool.Pin(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 2, after.Instance.Timeline, name)
		require.NoError(t, readHead(t, pool))
	}
}

// A standby knows its timeline from the lineage row, too, when its WAL receiver
// does not tell.
func TestAStandbyLearnsItsTimelineFromTheLineageRow(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	primary, replica := pgtest.Cluster(t)
	pgtest.WaitReplayed(t, primary, replica)
	pool, base := openInstance(t, replica.URL(db.Name))
	_, err := conn.Exec(t.Context(), `INSERT INTO lineage (system_identifier, timeline, server_started) VALUES ($1, 7, now())`, base.Instance.SystemIdentifier)
	require.NoError(t, err)
	pgtest.WaitReplayed(t, primary, replica)
	cause := changed(pool.Verify(t.Context()))
	require.NotNil(t, cause)
	require.EqualValues(t, 7, cause.Seen.Timeline)
}

// A query that replay cancels on a standby is repeated and is no lost
// connection; the connections of a database that goes away are lost.
func TestARecoveryConflictIsRepeated(t *testing.T) {
	db := pgtest.Migrated(t, migrate)
	conn := connect(t, db.PrimaryURL)
	insert(t, conn, group(1), []byte("a"))
	primary, replica := pgtest.Cluster(t)
	pgtest.WaitReplayed(t, primary, replica)
	pool, _ := openInstance(t, db.ReplicaURL)
	require.NoError(t, readHead(t, pool))
	require.NoError(t, store.CancelledByReplay(t.Context(), pool, 2), "two cancelled runs and one that works")
	require.Error(t, store.CancelledByReplay(t.Context(), pool, 100))
}
