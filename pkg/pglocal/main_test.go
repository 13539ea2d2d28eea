package pglocal_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// ownerVariable makes this binary an owner of a server: it starts one in the named folder, prints its address and waits
// to be killed.
const ownerVariable = "PGLOCAL_TEST_OWNER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerVariable); dir != "" {
		s, err := pglocal.StartPrimary(context.Background(), pglocal.Options{Dir: dir, Settings: quick})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(s.URL("postgres"))
		select {}
	}
	goleak.VerifyTestMain(m)
}

// orphan starts a server in dir by another process and kills that process. It returns the pid of the server left behind.
func orphan(t *testing.T, dir string) int {
	t.Helper()
	owner := startOwner(t, dir)
	require.NoError(t, owner.Process.Kill())
	_ = owner.Wait()
	pid := postmasterPID(t, dir)
	require.True(t, alive(pid), "the server did not outlive its owner")
	return pid
}

func startOwner(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+dir)
	out, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(line, "postgres://"), line)
	return owner
}

func postmasterPID(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	require.NoError(t, err)
	return pid
}

// alive is false for a process that only waits to be reaped.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, sig))
}
