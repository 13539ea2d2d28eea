package pgtest_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
)

// endVariable makes TestEnding, in a copy of this binary, end the process in the named way.
const endVariable = "PGTEST_END"

const folderMark = "folder of the servers: "

// TestEnding has something to do only in the copies that TestNothingIsLeftBehind runs.
func TestEnding(t *testing.T) {
	end := os.Getenv(endVariable)
	if end == "" {
		return
	}
	primary := pgtest.Primary(t)
	fmt.Println(folderMark + filepath.Dir(primary.Dir()))
	switch end {
	case "failure":
		t.Fatal("as wanted")
	case "panic":
		panic("as wanted")
	case "exit":
		require.NoError(t, primary.Pause())
		os.Exit(3)
	case "kill":
		select {}
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	for _, end := range []string{"success", "failure", "panic", "exit", "kill"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestEnding$", "-test.v")
			cmd.Env = append(os.Environ(), endVariable+"="+end)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			dir := ""
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if _, found, ok := strings.Cut(lines.Text(), folderMark); ok {
					dir = found
					if end == "kill" {
						require.NoError(t, cmd.Process.Kill())
					}
				}
			}
			require.Equal(t, end == "success", cmd.Wait() == nil)
			require.NotEmpty(t, dir, "the copy did not start its servers")
			require.Eventually(t, func() bool {
				_, err := os.Stat(dir)
				return os.IsNotExist(err)
			}, 30*time.Second, 10*time.Millisecond, "%s is still there", dir)
			require.Empty(t, processesNaming(t, dir))
		})
	}
}

// processesNaming returns the command lines that hold the folder's name.
func processesNaming(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []string
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), dir) {
			found = append(found, string(text))
		}
	}
	return found
}
