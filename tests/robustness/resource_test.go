package robustness_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
	"github.com/xmtp-selfhosted/backend/tests/robustness/fault"
)

// The primary's disk runs full under load and is freed again. Publishes fail as
// UNAVAILABLE meanwhile, reads and streams go on, and nothing is lost.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv(mayMount) == "" {
		runWithMounts(t)
		return
	}
	mount := smallDisk(t, 400)
	c, tr := cluster(t, fault.Options{PrimaryDir: filepath.Join(mount, "primary"), Settings: map[string]string{
		"max_wal_size": "64MB", "min_wal_size": "32MB", "wal_keep_size": "0",
	}})
	ballast := filepath.Join(mount, "ballast")
	fill(t, ballast)
	// The server may even end itself: PANIC when the log cannot be written.
	require.Eventually(t, func() bool { return refusedWrites(tr.Recorder.Counts().Codes) > 5 || !c.Primary.Running() }, within, 20*time.Millisecond,
		"the full disk was not noticed")
	pages := tr.Recorder.Counts().Pages
	if c.Primary.Running() {
		require.Eventually(t, func() bool { return tr.Recorder.Counts().Pages > pages+20 || !c.Primary.Running() }, within, 20*time.Millisecond, "reads stopped")
	}
	require.NoError(t, os.Remove(ballast))
	if !c.Primary.Running() {
		t.Log("PostgreSQL ended itself, as it does when its log cannot be written")
		require.NoError(t, c.Primary.Start(t.Context()))
	}
	acknowledgeMore(t, tr, 100)
	history := finish(t, c, tr, c.Primary)
	require.Empty(t, check.All(history))
}

func refusedWrites(codes map[string]int) (n int) {
	for name, count := range codes {
		if strings.HasPrefix(name, "Publish ") {
			n += count
		}
	}
	return n
}

// mayMount says that this process may mount although it is not root's.
const mayMount = "XMTP_TEST_MAY_MOUNT"

// runWithMounts runs the calling test in a process that has mounts of its own, as
// an ordinary user may.
func runWithMounts(t *testing.T) {
	t.Helper()
	const capSysAdmin = 21
	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.Command(self, "-test.run", "^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), mayMount+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
		AmbientCaps: []uintptr{capSysAdmin},
	}
	out, err := command.CombinedOutput()
	require.NoError(t, err, "it mounts a small disk, which takes root, or a kernel that lets users have name spaces: %s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
}

// smallDisk mounts a tmpfs of some MiB.
func smallDisk(t *testing.T, megabytes int) string {
	t.Helper()
	dir, err := fault.TempDir()
	require.NoError(t, err)
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755,size="+strconv.Itoa(megabytes)+"m"))
	t.Cleanup(func() {
		require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH))
		require.NoError(t, os.Remove(dir))
	})
	return dir
}

// fill writes until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	file, err := os.Create(name)
	require.NoError(t, err)
	defer file.Close()
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = file.Write(block)
	}
	for size := 4096; err != nil && size > 0; size /= 2 { // the last corner
		_, err = file.Write(block[:size])
	}
}

// Other programs take all connections that PostgreSQL has. Roles answer
// UNAVAILABLE where they need a new one, and recover when connections are free.
func TestNoConnectionsLeft(t *testing.T) {
	c, tr := cluster(t, fault.Options{Settings: map[string]string{"max_connections": "60"}})
	publishers := []*fault.Process{c.Process("publisher 1"), c.Process("publisher 2")}
	url := c.DatabaseURL(c.Primary)
	sessions := c.Proxies[fault.PublishersToPrimary].Ports()
	require.NotEmpty(t, sessions)
	for _, p := range publishers {
		require.NoError(t, p.End(syscall.SIGKILL))
	}
	first, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // what ended later would leave room for others
		var left int
		assert.NoError(c, first.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE client_port = ANY($1)", sessions).Scan(&left))
		assert.Zero(c, left)
	}, within, 20*time.Millisecond, "sessions of the killed publishers stay")
	taken := []*pgx.Conn{first}
	require.Eventually(t, func() bool {
		for {
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				return len(taken) > 20
			}
			taken = append(taken, conn)
		}
	}, within, 100*time.Millisecond, "connections are not taken")
	t.Logf("took %d connections", len(taken))
	for _, p := range publishers {
		require.NoError(t, p.Start())
	}
	failed := refusedWrites(tr.Recorder.Counts().Codes)
	require.Eventually(t, func() bool { return refusedWrites(tr.Recorder.Counts().Codes) > failed+3 }, within, 20*time.Millisecond,
		"publishes succeed without connections")
	for _, conn := range taken {
		require.NoError(t, conn.Close(t.Context()))
	}
	acknowledgeMore(t, tr, 100)
	require.Empty(t, check.All(finish(t, c, tr, c.Primary)))
}

// PostgreSQL's clock jumps an hour ahead, and back again. Times of envelopes jump
// with it; order, completeness and ids do not care.
func TestClockJump(t *testing.T) {
	c, tr := cluster(t, fault.Options{})
	for _, offset := range []string{"+1h", "-1h", ""} {
		require.NoError(t, c.RestartPrimaryAt(t.Context(), offset))
		acknowledgeMore(t, tr, 60)
	}
	history := finish(t, c, tr, c.Primary)
	jumped := false
	for i := range history.Table {
		if i > 0 && history.Table[i].Meta.ServerNS < history.Table[i-1].Meta.ServerNS-int64(30*time.Minute) {
			jumped = true
		}
		history.Table[i].CommittedAt = time.Time{} // by the clock that jumped
	}
	require.True(t, jumped, "the clock did not jump")
	require.Empty(t, check.All(history))
}
