package pgtest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

var migrations atomic.Int32

func migrate(ctx context.Context, url string) error {
	migrations.Add(1)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE TABLE items (id int)")
	return errors.Join(err, conn.Close(ctx))
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func count(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM items").Scan(&n))
	return n
}

func TestEachTestHasItsOwnCopyOfOneSchema(t *testing.T) {
	primary, replica := pgtest.Cluster(t)
	for _, name := range []string{"one", "two", "three", "four"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Migrated(t, migrate)
			conn := connect(t, db.PrimaryURL)
			require.Zero(t, count(t, conn), "a row of another test")
			_, err := conn.Exec(t.Context(), "INSERT INTO items VALUES (1)")
			require.NoError(t, err)
			pgtest.WaitReplayed(t, primary, replica)
			require.Equal(t, 1, count(t, connect(t, db.ReplicaURL)))
			require.EqualValues(t, 1, migrations.Load())
		})
	}
}

func TestOwnServersAreTheTestsAlone(t *testing.T) {
	var primaryDir, replicaDir string
	t.Run("in use", func(t *testing.T) {
		primary, replica := pgtest.OwnCluster(t, map[string]string{"fsync": "off", "max_connections": "30"})
		shared, _ := pgtest.Cluster(t)
		require.NotEqual(t, shared.Port(), primary.Port())
		primaryDir, replicaDir = primary.Dir(), replica.Dir()
		require.NoError(t, primary.Stop(pglocal.Fast))
		require.NoError(t, replica.Promote(t.Context()))
		var connections string
		require.NoError(t, connect(t, replica.URL("postgres")).QueryRow(t.Context(), "SHOW max_connections").Scan(&connections))
		require.Equal(t, "30", connections)
	})
	require.NoDirExists(t, primaryDir)
	require.NoDirExists(t, replicaDir)
}

func TestDatabaseIsEmptyAndDroppedWithItsTest(t *testing.T) {
	var url string
	t.Run("in use", func(t *testing.T) {
		url = pgtest.Database(t)
		var tables int
		require.NoError(t, connect(t, url).QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables))
		require.Zero(t, tables)
	})
	_, err := pgx.Connect(t.Context(), url)
	require.ErrorContains(t, err, "does not exist")
}
