package pglocal_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

func TestServerOfADeadOwnerIsTakenOver(t *testing.T) {
	t.Parallel()
	cases := map[string]func(t *testing.T, pid int){
		"running": func(*testing.T, int) {},
		"paused":  func(t *testing.T, pid int) { kill(t, pid, syscall.SIGSTOP) },
		"killed":  func(t *testing.T, pid int) { kill(t, pid, syscall.SIGKILL) },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			pid := orphan(t, dir)
			change(t, pid)
			var steps []string
			s := primary(t, pglocal.Options{Dir: dir, Progress: func(step string) { steps = append(steps, step) }})
			require.False(t, alive(pid), "two servers run in one folder")
			require.Equal(t, "1", query(t, s, "SELECT '1'"))
			if name != "killed" {
				require.Len(t, steps, 1)
				require.Contains(t, steps[0], "an earlier run left")
			}
		})
	}
}

// A client's process ends only when it next looks at its postmaster; a paused one never does by itself.
func TestWorkersOfAKilledPostmasterAreEnded(t *testing.T) {
	t.Parallel()
	s := primary(t, pglocal.Options{Dir: folder(t)})
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var worker int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&worker))
	_, err = conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 'one' AS v")
	require.NoError(t, err)
	kill(t, worker, syscall.SIGSTOP)
	kill(t, postmasterPID(t, s.Dir()), syscall.SIGKILL)
	<-s.Exited()
	require.True(t, alive(worker))

	require.NoError(t, s.Start(t.Context()))
	require.False(t, alive(worker))
	require.Equal(t, "one", query(t, s, "SELECT v FROM kept"))
}

func TestStalePIDFileOfAnotherProcessIsNoObstacle(t *testing.T) {
	t.Parallel()
	s := primary(t, pglocal.Options{Dir: folder(t)})
	file := filepath.Join(s.Dir(), "data", "postmaster.pid")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, s.Kill())
	// As after a reboot: the number now belongs to a process that has nothing to do with it, here to this one.
	_, rest, _ := strings.Cut(string(text), "\n")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "%d\n%s", os.Getpid(), rest), 0o644))
	require.NoError(t, s.Start(t.Context()))
}

func TestFolderOfALivingOwnerIsRefused(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	owner := startOwner(t, dir)
	pid := postmasterPID(t, dir)
	_, err := pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: dir})
	require.ErrorIs(t, err, pglocal.ErrInUse)
	require.ErrorIs(t, pglocal.KillOrphan(t.Context(), dir), pglocal.ErrInUse)
	require.True(t, alive(pid))

	require.NoError(t, owner.Process.Kill())
	_ = owner.Wait()
	require.NoError(t, pglocal.KillOrphan(t.Context(), dir))
	require.False(t, alive(pid))
}

func TestInterruptedCreationIsDoneAgain(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	unfinished := filepath.Join(dir, "data.unfinished")
	require.NoError(t, os.Mkdir(unfinished, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(unfinished, "PG_VERSION"), []byte("15\n"), 0o600))
	s := primary(t, pglocal.Options{Dir: dir})
	require.Equal(t, "1", query(t, s, "SELECT '1'"))
	require.NoDirExists(t, unfinished)
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := pglocal.StartPrimary(ctx, pglocal.Options{Dir: dir, Progress: func(string) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
	primary(t, pglocal.Options{Dir: dir}) // the folder is free and whole
}

func TestPausedServerDoesNotAnswerAndResumes(t *testing.T) {
	t.Parallel()
	s := primary(t, pglocal.Options{Dir: folder(t)})
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	require.NoError(t, s.Pause())
	require.True(t, s.Running())
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT 1")
		answered <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = pgx.Connect(ctx, s.URL("postgres"))
	require.Error(t, err, "a paused server takes connections")
	require.Empty(t, answered, "a paused server answers")
	require.NoError(t, s.Resume())
	require.NoError(t, <-answered)
	require.Equal(t, "1", query(t, s, "SELECT '1'"))

	require.NoError(t, s.Pause())
	require.NoError(t, s.Stop(pglocal.Fast), "a paused server cannot be stopped")
	require.False(t, s.Running())
	require.Error(t, s.Pause())
}

func TestKillEndsAPausedServer(t *testing.T) {
	t.Parallel()
	s := primary(t, pglocal.Options{Dir: folder(t)})
	require.NoError(t, s.Pause())
	require.NoError(t, s.Kill())
	require.NoError(t, s.Start(t.Context()))
}

func TestWrongSettingIsAClearError(t *testing.T) {
	t.Parallel()
	_, err := pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: folder(t), Settings: map[string]string{"work_mem": "lots"}})
	require.ErrorContains(t, err, `invalid value for parameter "work_mem"`)
	require.NotContains(t, err.Error(), "\n")
}

func TestDataOfAnotherVersionIsAClearError(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := primary(t, pglocal.Options{Dir: dir})
	require.NoError(t, s.Stop(pglocal.Fast))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("12\n"), 0o600))
	_, err := pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: dir})
	require.ErrorContains(t, err, "was made by PostgreSQL 12")
}
