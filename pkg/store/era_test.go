package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// A server that becomes a standby behind a connection, as behind some poolers, says so on
// both ways of writing. Then no connection of before is used again.
func TestAStandbyBehindAConnection(t *testing.T) {
	primary, replica := pgtest.Cluster(t)
	db := pgtest.Migrated(t, migrate)
	pgtest.WaitReplayed(t, primary, replica)
	for name, certain := range map[string]bool{"at once": true, "with its locks first": false} {
		t.Run(name, func(t *testing.T) {
			p, err := store.OpenBehindAPooler(secret(db.ReplicaURL), poolConfig)
			require.NoError(t, err)
			defer p.Close()
			batch := draftsOf("a " + name)
			batch.Certain = certain
			for round := range int64(2) {
				_, err = p.Commit(t.Context(), batch, storeWhatIsNew(batch))
				require.Equal(t, fault.Unavailable, fault.KindOf(err), "%v", err)
				require.Equal(t, "the database takes no writes, expected the primary", fault.Of(err).Text())
				require.True(t, store.IsAway(err))
				require.Equal(t, 1+round, p.Sessions(), "each time it looks again")
			}
			require.Equal(t, fault.Unavailable, fault.KindOf(p.CheckServer(t.Context())), "so says its health")
		})
	}
}

// A publisher waits for the disk where its server is not to, and in any other way that
// the operator chose.
func TestSessionsWaitForTheDisk(t *testing.T) {
	url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	conn := connect(t, url)
	for set, want := range map[string]string{
		"off": "on", "local": "local", "on": "on", "remote_write": "remote_write", "remote_apply": "remote_apply",
	} {
		t.Run(set, func(t *testing.T) {
			byURL := openPublisher(t, url+"&options=-csynchronous_commit%3D"+set)
			got, err := byURL.Setting(t.Context(), "synchronous_commit")
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.NoError(t, byURL.CheckServer(t.Context()))
			require.EqualValues(t, 1, byURL.Sessions(), "nothing changed")

			_, err = conn.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s SET synchronous_commit = %s", databaseOf(t, url), set))
			require.NoError(t, err)
			byDatabase := openPublisher(t, url)
			got, err = byDatabase.Setting(t.Context(), "synchronous_commit")
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// What a publisher was told to be stored is there after a crash, also on a server that is
// configured not to wait for the disk, before the publisher connects or while it runs.
func TestACommitSurvivesACrash(t *testing.T) {
	for name, settings := range map[string]map[string]string{
		"configured before": {"synchronous_commit": "off", "wal_writer_delay": "10s"},
		"while it runs":     {"wal_writer_delay": "10s"},
	} {
		t.Run(name, func(t *testing.T) {
			server := pgtest.OwnPrimary(t, settings)
			url := server.URL("postgres")
			require.NoError(t, migrate(t.Context(), url))
			p := openPublisher(t, url)
			publishAll(t, p, draftsOf("a before"))
			if settings["synchronous_commit"] == "" {
				conn := connect(t, url)
				for _, statement := range []string{"ALTER SYSTEM SET synchronous_commit = off", "SELECT pg_reload_conf()"} {
					_, err := conn.Exec(t.Context(), statement)
					require.NoError(t, err)
				}
				require.Eventually(t, func() bool {
					require.NoError(t, p.CheckServer(t.Context())) // each second, in a publisher
					got, err := p.Setting(t.Context(), "synchronous_commit")
					require.NoError(t, err)
					return p.Sessions() > 1 && got == "on"
				}, time.Minute, time.Millisecond, "the sessions of before are replaced")
			}
			publishAll(t, p, draftsOf("a 1", "b 1"))
			batch := draftsOf("a 2", "b 2")
			batch.Certain = false
			publishAll(t, p, batch)
			require.NoError(t, server.Kill())
			require.NoError(t, server.Start(t.Context()))
			rows, _ := contents(t, connect(t, url))
			require.Len(t, rows, 5)
		})
	}
}

// Whoever looks at the database before and after it is another one, can tell.
func TestAnEraEndsWithItsServer(t *testing.T) {
	server := pgtest.OwnPrimary(t, nil)
	require.NoError(t, migrate(t.Context(), server.URL("postgres")))
	p := openPublisher(t, server.URL("postgres"))
	require.Zero(t, p.Era())
	find := func() {
		t.Helper()
		require.Eventually(t, func() bool {
			_, err := p.FindStored(t.Context(), []store.Key{{Topic: group(1)}})
			return err == nil
		}, time.Minute, time.Millisecond)
	}
	find()
	require.EqualValues(t, 1, p.Era())
	find()
	require.EqualValues(t, 1, p.Era())
	require.NoError(t, server.Restart(t.Context()))
	find()
	require.EqualValues(t, 2, p.Era(), "it may have been started from a copy")
	batch := draftsOf("a 1")
	batch.Certain = false
	_, err := p.Commit(t.Context(), batch, func(found store.Locked) (store.Verdict, error) {
		require.EqualValues(t, 2, found.Era)
		return storeWhatIsNew(batch)(found)
	})
	require.NoError(t, err)
}
