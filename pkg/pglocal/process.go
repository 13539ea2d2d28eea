package pglocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pollEvery is how often a state that has no event to wait for is looked at.
const pollEvery = 10 * time.Millisecond

// process is what /proc tells every user about a process.
type process struct {
	pid, parent int
	state       byte
	args        []string
}

// processes returns all processes that are alive; one that ends meanwhile is left out.
func processes() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// readProcess returns false for a process that is gone or that only waits to be reaped.
func readProcess(pid int) (process, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, false
	}
	// The name is in brackets and may hold any byte; state and parent follow the last closing one.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return process{}, false
	}
	args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	return process{pid: pid, parent: parent, state: fields[0][0], args: args}, true
}

func children(parent int) ([]int, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range all {
		if p.parent == parent {
			pids = append(pids, p.pid)
		}
	}
	return pids, nil
}

// uses reports whether the process is a server program that was given the directory: a postmaster, or a tool that
// still fills it.
func (p process) uses(dir string) bool {
	return slices.Contains(tools, filepath.Base(p.args[0])) && slices.Contains(p.args[1:], dir)
}

// serves reports whether the process is a child of a postmaster with that cluster name. Children show it in their title.
func (p process) serves(clusterName string) bool {
	return strings.HasPrefix(p.args[0], "postgres: "+clusterName+": ")
}

// leftovers returns the processes of an earlier server in the directory, its postmaster or tool first. Callers hold the
// directory's lock, so that none of them has a living owner.
func (s *Server) leftovers() (owners, workers []int, err error) {
	all, err := processes()
	if err != nil {
		return nil, nil, err
	}
	for _, p := range all {
		switch {
		case p.uses(s.dataDir()), p.uses(s.unfinishedDir()):
			owners = append(owners, p.pid)
		case p.serves(s.clusterName()):
			workers = append(workers, p.pid)
		}
	}
	return owners, workers, nil
}

// takeOver stops what an earlier owner of the directory left running, at first politely and at once by SIGKILL if so
// wanted, and removes the pid file it left behind.
func (s *Server) takeOver(ctx context.Context, politely bool) error {
	owners, workers, err := s.leftovers()
	if err != nil {
		return err
	}
	if len(owners)+len(workers) > 0 {
		s.progress("stopping a PostgreSQL that an earlier run left in %s", s.options.Dir)
		if err := s.end(ctx, owners, workers, politely); err != nil {
			return err
		}
	}
	// No postgres runs here now, whatever process has the number in this file.
	if err := os.Remove(filepath.Join(s.dataDir(), pidFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a stale pid file: %w", err)
	}
	return nil
}

func (s *Server) end(ctx context.Context, owners, workers []int, politely bool) error {
	pids := slices.Concat(owners, workers)
	if politely && len(owners) > 0 {
		signalAll(syscall.SIGCONT, pids) // a paused process does not hear the other signal
		signalAll(syscall.SIGINT, owners)
		if s.gone(ctx.Done(), stopWithin, pids) {
			return nil
		}
	}
	signalAll(syscall.SIGKILL, pids)
	// A postmaster may have started others before it died; those end with it, unless they are paused.
	gone := poll(ctx.Done(), killWithin, func() bool {
		owners, workers, err := s.leftovers()
		signalAll(syscall.SIGKILL, owners, workers)
		return err == nil && len(owners)+len(workers) == 0 && !anyAlive(pids)
	})
	if !gone {
		return errors.Join(ctx.Err(), fmt.Errorf("a PostgreSQL that an earlier run left in %s does not stop", s.options.Dir))
	}
	return nil
}

// gone waits until these processes, and all others of the directory, have ended. A process that is just ending no longer
// shows whose it was, but may still hold the port.
func (s *Server) gone(cancelled <-chan struct{}, within time.Duration, pids []int) bool {
	return poll(cancelled, within, func() bool {
		owners, workers, err := s.leftovers()
		return err == nil && len(owners)+len(workers) == 0 && !anyAlive(pids)
	})
}

func anyAlive(pids []int) bool {
	return slices.ContainsFunc(pids, func(pid int) bool {
		_, alive := readProcess(pid)
		return alive
	})
}

// signalAll ignores processes that are gone.
func signalAll(sig syscall.Signal, groups ...[]int) {
	for _, pids := range groups {
		for _, pid := range pids {
			_ = syscall.Kill(pid, sig)
		}
	}
}

// poll waits until done holds and reports whether it did in time.
func poll(cancelled <-chan struct{}, within time.Duration, done func() bool) bool {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		if done() {
			return true
		}
		select {
		case <-cancelled:
			return false
		case <-timeout.C:
			return done() // this process may have stood still since the last look
		case <-ticker.C:
		}
	}
}
