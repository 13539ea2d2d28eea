package pgtest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// guardVariable tells a copy of the test binary that it is the guard of a folder.
const guardVariable = "PGTEST_GUARD_DIR"

// cleanWithin bounds what a guard does after its test binary.
const cleanWithin = time.Minute

// guard is a copy of the test binary that waits for the end of this process, by a pipe that the kernel closes then, and
// ends the servers that are left in a folder before it removes the folder. No code in the dying process could do that.
type guard struct {
	dir  string
	pipe io.Closer
	cmd  *exec.Cmd
}

func startGuard() (*guard, error) {
	dir, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		return nil, fmt.Errorf("create a folder for servers: %w", err)
	}
	g := &guard{dir: dir}
	if err := g.start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("start the guard of test servers: %w", err)
	}
	return g, nil
}

func (g *guard) start() error {
	if err := os.Chmod(g.dir, 0o755); err != nil { // the servers' user must get in
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	g.cmd = exec.Command(self)
	g.cmd.Env = append(os.Environ(), guardVariable+"="+g.dir)
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for the tests alone
	pipe, err := g.cmd.StdinPipe()
	if err != nil {
		return err
	}
	g.pipe = pipe
	return g.cmd.Start()
}

// finish lets the guard do its work now and waits for it.
func (g *guard) finish() error {
	_ = g.pipe.Close()
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("clean up after test servers in %s: %w", g.dir, err)
	}
	return nil
}

func guardedDir() (string, bool) { return os.LookupEnv(guardVariable) }

// guardMain is the guard's process.
func guardMain(dir string) int {
	_, _ = io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), cleanWithin)
	defer cancel()
	code := 0
	servers, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		code = 1
	}
	for _, server := range servers {
		if err := pglocal.KillOrphan(ctx, server); err != nil {
			code = 1
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		code = 1
	}
	return code
}
