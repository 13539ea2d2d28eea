package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
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
	own, _, err := processTimes(d.command.Process.Pid)
	if err != nil {
		return c, err
	}
	c.roles = own
	if c.primary, err = postgresTimes(filepath.Join(d.dir, "postgres", "primary", "data")); err != nil {
		return c, err
	}
	c.replica, err = postgresTimes(filepath.Join(d.dir, "postgres", "replica", "data"))
	return c, err
}

func (c cpu) since(before cpu) cpu {
	return cpu{c.roles - before.roles, c.primary - before.primary, c.replica - before.replica}
}

// clockTick is the unit of process times in /proc on Linux.
const clockTick = time.Second / 100

// postgresTimes sums a server's processes, those that ended included.
func postgresTimes(dataDir string) (time.Duration, error) {
	content, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return 0, err
	}
	own, ended, err := processTimes(postmaster)
	if err != nil {
		return 0, err
	}
	sum := own + ended
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
	if err != nil {
		return 0, err
	}
	for field := range strings.FieldsSeq(string(list)) {
		if pid, err := strconv.Atoi(field); err == nil {
			if used, _, err := processTimes(pid); err == nil { // or it has just ended
				sum += used
			}
		}
	}
	return sum, nil
}

// processTimes are those of a process and of its children that ended.
func processTimes(pid int) (own, ended time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, after, _ := strings.Cut(string(stat), ") ") // past the name, which may hold spaces
	fields := strings.Fields(after)
	const user, last = 11, 14 // user, system, and both of ended children
	if len(fields) <= last {
		return 0, 0, fmt.Errorf("the times of process %d cannot be read", pid)
	}
	var ticks [4]int64
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(fields[user+i], 10, 64); err != nil {
			return 0, 0, err
		}
	}
	return time.Duration(ticks[0]+ticks[1]) * clockTick, time.Duration(ticks[2]+ticks[3]) * clockTick, nil
}
