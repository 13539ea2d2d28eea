package proctime_test

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/proctime"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestOwnTimeIsThatOfTheKernel(t *testing.T) {
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
	}
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	took, err := proctime.Of(os.Getpid())
	require.NoError(t, err)
	want := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	require.InDelta(t, want.Seconds(), took.Seconds(), 0.1)
	require.Positive(t, took)
}

// What a session took counts while it is open and after it ended.
func TestAServerCountsItsSessions(t *testing.T) {
	primary := pgtest.Primary(t)
	data := filepath.Join(primary.Dir(), "data")
	before, err := proctime.OfPostgres(data)
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT count(*) FROM generate_series(1, 3000000)")
	require.NoError(t, err)
	const work = 50 * time.Millisecond // no server does that in less
	during, err := proctime.OfPostgres(data)
	require.NoError(t, err)
	require.Greater(t, during-before, work)
	require.NoError(t, conn.Close(t.Context()))
	after, err := proctime.OfPostgres(data)
	require.NoError(t, err)
	require.GreaterOrEqual(t, after, during)
}

func TestAServerThatIsNotThere(t *testing.T) {
	_, err := proctime.OfPostgres(t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte("none\n"), 0o600))
	_, err = proctime.OfPostgres(dir)
	require.ErrorContains(t, err, `"none", expected a process id`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(strconv.Itoa(1<<30)+"\n"), 0o600))
	_, err = proctime.OfPostgres(dir)
	require.Error(t, err)
}
