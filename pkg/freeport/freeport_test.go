package freeport_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// picker makes this program print so many ports that it picks, and then wait.
const picker = "FREEPORT_TEST_PICKS"

func TestMain(m *testing.M) {
	if count, err := strconv.Atoi(os.Getenv(picker)); err == nil {
		for range count {
			port, err := freeport.Pick()
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			fmt.Println(port)
		}
		os.Stdout.Close()
		_, _ = os.Stdin.Read(make([]byte, 1)) // ends with the parent
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestPickedPortCanBeListenedOn(t *testing.T) {
	port, err := freeport.Pick()
	require.NoError(t, err)
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	require.NoError(t, err)
	require.Error(t, freeport.Check(port), "a port in use counts as free")
	require.NoError(t, listener.Close())
	require.NoError(t, freeport.Check(port))
}

func TestListenKeepsThePort(t *testing.T) {
	listener, err := freeport.Listen()
	require.NoError(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	require.NoError(t, listener.Close())
	require.NoError(t, freeport.Check(port))
	_, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	require.Error(t, err, "the mark is gone")
}

// Three processes pick so many of the 17,000 ports that, without the marks, two
// would all but surely pick the same one.
func TestAPortIsPickedOnceOnTheMachine(t *testing.T) {
	const processes, count = 3, 300
	self, err := os.Executable()
	require.NoError(t, err)
	seen := map[string]bool{}
	for range processes {
		command := exec.Command(self)
		command.Env = append(os.Environ(), picker+"="+strconv.Itoa(count))
		hold, err := command.StdinPipe()
		require.NoError(t, err)
		out, err := command.StdoutPipe()
		require.NoError(t, err)
		var wrong strings.Builder
		command.Stderr = &wrong
		require.NoError(t, command.Start())
		t.Cleanup(func() {
			_ = hold.Close()
			require.NoError(t, command.Wait(), wrong.String())
		})
		for range count {
			var port string
			_, err := fmt.Fscanln(out, &port)
			require.NoError(t, err)
			require.False(t, seen[port], "%s was picked twice", port)
			seen[port] = true
		}
	}
}
