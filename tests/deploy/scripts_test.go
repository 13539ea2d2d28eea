package deploy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// tempDir is a folder that PostgreSQL's own user can enter, unlike t.TempDir.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "xmtp-deploy-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o777))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// asPostgres runs a command as the user that a server may run as.
func asPostgres(ctx context.Context, binaries pglocal.Binaries, environment []string, script ...string) *exec.Cmd {
	args := append([]string{"/bin/sh"}, script...)
	if os.Geteuid() == 0 {
		args = append([]string{"setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--inh-caps=-all"}, args...)
	}
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Env = append([]string{"PATH=" + binaries.Dir + ":" + os.Getenv("PATH")}, environment...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // a fast stop
	command.WaitDelay = 20 * time.Second
	return command
}

// TestTheScriptsOfComposeMakeAReplica runs both as the containers do, against
// real servers.
func TestTheScriptsOfComposeMakeAReplica(t *testing.T) {
	dir := tempDir(t)
	binaries, err := pglocal.EnsureInstalled(t.Context(), nil)
	require.NoError(t, err)
	primary, err := pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: filepath.Join(dir, "primary"), Binaries: binaries, Settings: map[string]string{"wal_level": "replica"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, primary.Stop(pglocal.Fast)) })

	scripts := tempDir(t) // a clone may lie where PostgreSQL's user cannot go
	for _, name := range []string{"primary.sh", "replica.sh"} {
		content, err := os.ReadFile(filepath.Join(repository, "deploy/docker", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(scripts, name), content, 0o755))
	}
	port := strconv.Itoa(primary.Port())
	output, err := asPostgres(t.Context(), binaries, []string{
		"PGHOST=127.0.0.1", "PGPORT=" + port, "POSTGRES_USER=postgres", "POSTGRES_DB=postgres", "REPLICATION_PASSWORD=it's secret", "PGDATA=" + dataOf(t, primary),
	}, filepath.Join(scripts, "primary.sh")).CombinedOutput()
	require.NoError(t, err, "%s", output)
	connection, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close(context.Background()) })
	_, err = connection.Exec(t.Context(), "SELECT pg_reload_conf()") // the image restarts its server here
	require.NoError(t, err)

	ctx, stop := context.WithCancel(context.Background())
	data := filepath.Join(dir, "copy")
	require.NoError(t, os.Mkdir(data, 0o777))
	if os.Geteuid() == 0 { // as in the image, the folder is the server's
		require.NoError(t, exec.CommandContext(t.Context(), "chown", "postgres", data).Run())
	}
	own, err := freeport.Pick()
	require.NoError(t, err)
	replica := asPostgres(ctx, binaries, []string{"PGDATA=" + data, "PRIMARY_HOST=127.0.0.1", "PRIMARY_PORT=" + port, "PGPASSWORD=it's secret", "PGPORT=" + strconv.Itoa(own)},
		filepath.Join(scripts, "replica.sh"), "-c", "unix_socket_directories=")
	var log bytes.Buffer
	replica.Stdout, replica.Stderr = &log, &log
	require.NoError(t, replica.Start())
	t.Cleanup(func() {
		stop()
		if err := replica.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			t.Log(log.String())
		}
	})
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		copied, err := pgx.Connect(t.Context(), "postgres://postgres@127.0.0.1:"+strconv.Itoa(own)+"/postgres?sslmode=disable")
		require.NoError(c, err)
		defer func() { _ = copied.Close(t.Context()) }()
		var standby bool
		var feedback, interval, status string
		require.NoError(c, copied.QueryRow(t.Context(), "SELECT pg_is_in_recovery(), current_setting('hot_standby_feedback'), current_setting('wal_receiver_status_interval'), coalesce((SELECT status FROM pg_stat_wal_receiver), 'none')").Scan(&standby, &feedback, &interval, &status))
		require.True(c, standby)
		require.Equal(c, "on", feedback)
		require.Equal(c, "1s", interval)
		require.Equal(c, "streaming", status)
	}, time.Minute, 200*time.Millisecond)
}

func dataOf(t *testing.T, server *pglocal.Server) string {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = connection.Close(t.Context()) }()
	var dir string
	require.NoError(t, connection.QueryRow(t.Context(), "SHOW data_directory").Scan(&dir))
	return dir
}
