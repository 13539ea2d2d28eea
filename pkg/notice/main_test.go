package notice_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
)

// serverPort makes a copy of this binary a NATS server: one that can be stopped
// like any process.
const serverPort = "NOTICE_TEST_NATS_PORT"

func TestMain(m *testing.M) {
	if port, err := strconv.Atoi(os.Getenv(serverPort)); err == nil { // a word from one process of the test to another
		if _, err := natslocal.Start(natslocal.Options{Port: port}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_, _ = os.Stdin.Read(make([]byte, 1)) // ends with the parent
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// serverProcess runs a NATS server in a process of its own.
func serverProcess(t *testing.T) (url string, process *os.Process) {
	t.Helper()
	port, err := freeport.Pick()
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.Command(self)
	command.Env = append(os.Environ(), serverPort+"="+strconv.Itoa(port))
	pipe, err := command.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGCONT)
		require.NoError(t, pipe.Close())
		_ = command.Wait()
	})
	require.Eventually(t, func() bool { return freeport.Check(port) != nil }, within, 10*time.Millisecond, "NATS listens")
	return "nats://127.0.0.1:" + strconv.Itoa(port), command.Process
}
