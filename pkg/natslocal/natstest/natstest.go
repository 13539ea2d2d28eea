// Package natstest runs a NATS server in a process of its own: one that a test can stop and kill like any process.
package natstest

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
)

// serverName is the name under which a copy of a test binary is started as a server. Its one argument is the port.
const serverName = "natstest-server"

// Main makes the process a server if Start has started it as one, and returns otherwise. TestMain calls it first.
func Main() {
	if os.Args[0] != serverName {
		return
	}
	port, err := strconv.Atoi(os.Args[1])
	if err == nil {
		_, err = natslocal.Start(natslocal.Options{Port: port})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1)) // ends with the parent
	os.Exit(0)
}

// Start returns once clients can connect. The server ends with the test.
func Start(t testing.TB) (url string, process *os.Process) {
	t.Helper()
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var wrong strings.Builder
	command := &exec.Cmd{Path: self, Args: []string{serverName, strconv.Itoa(port)}, Stderr: &wrong}
	hold, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		_ = command.Process.Signal(syscall.SIGCONT)
		_ = hold.Close()
		_ = command.Wait()
	}
	t.Cleanup(end)
	// It says so itself: who looks from outside by listening would take the port from it.
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		end()
		t.Fatalf("the NATS server did not start: %v: %s", err, wrong.String())
	}
	return "nats://127.0.0.1:" + strconv.Itoa(port), command.Process
}
