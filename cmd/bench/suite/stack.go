package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
	"github.com/xmtp-selfhosted/backend/pkg/proctime"
)

// devStack is the dev stack in a process of its own, on fresh data, with fsync on
// as everywhere but in tests.
type devStack struct {
	dir       string
	command   *exec.Cmd
	endpoints stack.Endpoints
}

const startWithin = 3 * time.Minute

func startDevStack(ctx context.Context, program string) (*devStack, error) {
	dir, err := os.MkdirTemp("", "xmtp-bench-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL's user has to get in
		return nil, err
	}
	d := &devStack{dir: dir}
	if d.command, err = startProgram(program, "XMTP_DEV_DATA="+dir, "XMTP_GATEWAY_LISTEN=127.0.0.1:0"); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(startWithin); ; {
		content, err := os.ReadFile(filepath.Join(dir, stack.File))
		if err == nil {
			return d, json.Unmarshal(content, &d.endpoints)
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errors.Join(errors.New("the dev stack did not start"), d.stop())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (d *devStack) stop() error { return errors.Join(stopProgram(d.command), os.RemoveAll(d.dir)) }

// startProgram runs a program of ours with further variables. In a group of its
// own, so that Ctrl-C reaches the suite first.
func startProgram(program string, environment ...string) (*exec.Cmd, error) {
	command := exec.Command(program)
	command.Env = append(os.Environ(), environment...)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the %s: %w", filepath.Base(program), err)
	}
	return command, nil
}

func stopProgram(command *exec.Cmd) error {
	_ = command.Process.Signal(syscall.SIGTERM)
	return command.Wait()
}

// cpu is processor time so far: of all roles with NATS, of the primary, and of the
// replica.
type cpu struct{ roles, primary, replica time.Duration }

func (d *devStack) cpu() (c cpu, err error) {
	if c.roles, err = proctime.Of(d.command.Process.Pid); err != nil {
		return c, err
	}
	if c.primary, err = proctime.OfPostgres(filepath.Join(d.dir, "postgres", "primary", "data")); err != nil {
		return c, err
	}
	c.replica, err = proctime.OfPostgres(filepath.Join(d.dir, "postgres", "replica", "data"))
	return c, err
}

func (c cpu) since(before cpu) cpu {
	return cpu{c.roles - before.roles, c.primary - before.primary, c.replica - before.replica}
}
