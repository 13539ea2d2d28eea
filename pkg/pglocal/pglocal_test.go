package pglocal_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// folder is a directory that the server's user can enter, unlike t.TempDir with a strict umask.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pglocal-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// quick are settings without which the tests wait for the disk most of their time.
var quick = map[string]string{"fsync": "off", "wal_retrieve_retry_interval": "50ms"}

// primary starts a server with the quick settings unless the test has its own.
func primary(t *testing.T, options pglocal.Options) *pglocal.Server {
	t.Helper()
	if options.Settings == nil {
		options.Settings = quick
	}
	s, err := pglocal.StartPrimary(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(pglocal.Immediate)) })
	return s
}

func replica(t *testing.T, of *pglocal.Server, options pglocal.Options) *pglocal.Server {
	t.Helper()
	s, err := pglocal.StartReplica(t.Context(), of, options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(pglocal.Immediate)) })
	return s
}

func run(t *testing.T, s *pglocal.Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}

func query(t *testing.T, s *pglocal.Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var value string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

// eventually asks again until the answer is the wanted one; a relation that is not there yet counts as another answer.
func eventually(t *testing.T, s *pglocal.Server, sql, want string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var got string
	require.Eventually(t, func() bool {
		return conn.QueryRow(t.Context(), sql).Scan(&got) == nil && got == want
	}, 20*time.Second, 10*time.Millisecond, "%s does not come to answer %s", sql, want)
}

func TestDataSurvivesStopsStartsAndKills(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := primary(t, pglocal.Options{Dir: dir, Settings: map[string]string{"work_mem": "5MB"}})
	require.Equal(t, "5MB", query(t, s, "SHOW work_mem"))
	require.Equal(t, "100", query(t, s, "SHOW max_connections"))
	require.Equal(t, "on", query(t, s, "SHOW fsync"))
	require.Equal(t, "127.0.0.1", query(t, s, "SHOW listen_addresses"))
	run(t, s, "CREATE TABLE kept AS SELECT 'one' AS v")

	url := s.URL("postgres")
	require.NoError(t, s.Restart(t.Context()))
	require.Equal(t, url, s.URL("postgres"))
	require.Equal(t, "one", query(t, s, "SELECT v FROM kept"))

	run(t, s, "UPDATE kept SET v = 'two'")
	require.NoError(t, s.Kill())
	require.False(t, s.Running())
	<-s.Exited()
	require.NoError(t, s.Start(t.Context()))
	require.Equal(t, "two", query(t, s, "SELECT v FROM kept"))

	require.NoError(t, s.Stop(pglocal.Fast))
	again := primary(t, pglocal.Options{Dir: dir})
	require.Equal(t, "two", query(t, again, "SELECT v FROM kept"))
}

func TestReplicaFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	first := primary(t, pglocal.Options{Dir: filepath.Join(dir, "primary"), Settings: map[string]string{"max_connections": "120"}})
	second := replica(t, first, pglocal.Options{Dir: filepath.Join(dir, "replica")})
	require.Equal(t, "on", query(t, second, "SHOW hot_standby_feedback"))
	require.Equal(t, "1s", query(t, second, "SHOW wal_receiver_status_interval"))
	require.Equal(t, "120", query(t, second, "SHOW max_connections"))
	require.Equal(t, "true", query(t, first, "SELECT active::text FROM pg_replication_slots"))

	run(t, first, "CREATE TABLE copied AS SELECT 'one' AS v")
	eventually(t, second, "SELECT count(*)::text FROM pg_class WHERE relname = 'copied'", "1")

	require.NoError(t, first.Stop(pglocal.Fast))
	require.NoError(t, second.Promote(t.Context()))
	run(t, second, "UPDATE copied SET v = 'two'")
	require.Equal(t, "two", query(t, second, "SELECT v FROM copied"))
}

func TestTakenPortIsAClearError(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	_, err = pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: folder(t), Port: listener.Addr().(*net.TCPAddr).Port})
	require.ErrorIs(t, err, pglocal.ErrPortTaken)
	require.ErrorContains(t, err, listener.Addr().String())
}
