package pglocal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// postmaster is one run of a server's main process.
type postmaster struct {
	pid      int
	logStart int64         // where this run's part of the log file begins
	exited   chan struct{} // closed when the process has been reaped
}

// spawn starts the main process and waits until it takes connections. The directory's lock goes with the process.
func (s *Server) spawn(ctx context.Context) error {
	if err := freeport.Check(s.options.Port); err != nil {
		return fmt.Errorf("%w: 127.0.0.1:%d (%w)", ErrPortTaken, s.options.Port, err)
	}
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the log file: %w", err)
	}
	defer log.Close()
	end, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("open the log file: %w", err)
	}
	// Not bound to ctx and without a parent-death signal: the first would end the server with the start, the second
	// is tied to the thread that happens to run this and not to the process.
	cmd := exec.Command(s.options.Binaries.path("postgres"), s.arguments()...)
	s.as.prepare(cmd, s.dataDir())
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run postgres: %w", err)
	}
	run := &postmaster{pid: cmd.Process.Pid, logStart: end, exited: make(chan struct{})}
	s.mu.Lock()
	s.run, s.paused = run, false
	lock := s.lock
	s.mu.Unlock()
	go func() {
		_ = cmd.Wait() // why it ended is in its log
		lock.release()
		close(run.exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if err := s.waitReady(ctx, run); err != nil {
		return errors.Join(err, s.Stop(Immediate))
	}
	return nil
}

// settings are the caller's, a replica's on top of those of its primary: some may not be lower than there.
func (s *Server) settings() map[string]string {
	settings := map[string]string{}
	if s.primary != nil {
		settings = s.primary.settings()
		maps.Copy(settings, s.replicaSettings())
	}
	maps.Copy(settings, s.options.Settings)
	return settings
}

func (s *Server) arguments() []string {
	settings := s.settings()
	maps.Copy(settings, map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(s.options.Port),
		"unix_socket_directories": "", // their paths may not be long, and ours may be
		"cluster_name":            s.clusterName(),
		"logging_collector":       "off",
		"log_destination":         "stderr",
	})
	args := []string{"-D", s.dataDir()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// waitReady watches the pid file, in which the server itself says when it takes connections.
func (s *Server) waitReady(ctx context.Context, run *postmaster) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		if s.saysReady(run.pid) {
			return nil
		}
		select {
		case <-run.exited:
			return s.endedEarly(run)
		case <-ctx.Done():
			return fmt.Errorf("not ready yet: %w: %s", ctx.Err(), lastLine(s.logSince(run)))
		case <-ticker.C:
		}
	}
}

// statusLine is the line of the pid file, counted from 0, that holds the state.
const statusLine = 7

func (s *Server) saysReady(pid int) bool {
	text, err := os.ReadFile(filepath.Join(s.dataDir(), pidFile))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	return len(lines) > statusLine && lines[0] == strconv.Itoa(pid) && strings.TrimSpace(lines[statusLine]) == "ready"
}

func (s *Server) endedEarly(run *postmaster) error {
	log := s.logSince(run)
	if strings.Contains(log, "Address already in use") {
		return fmt.Errorf("%w: 127.0.0.1:%d", ErrPortTaken, s.options.Port)
	}
	for _, line := range slices.Backward(strings.Split(log, "\n")) {
		if strings.Contains(line, "FATAL:") || strings.Contains(line, "PANIC:") {
			return fmt.Errorf("postgres ended: %s (log: %s)", line, s.LogFile())
		}
	}
	return fmt.Errorf("postgres ended: %s (log: %s)", lastLine(log), s.LogFile())
}

// logTail bounds how much of a log is read for an error.
const logTail = 64 << 10

func (s *Server) logSince(run *postmaster) string {
	file, err := os.Open(s.LogFile())
	if err != nil {
		return ""
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, run.logStart, logTail))
	if err != nil {
		return ""
	}
	return string(text)
}

// Stop ends the server and waits for it. One that does not end within half a minute is ended in Immediate mode, and at
// last killed. Stopping a stopped server does nothing; a paused one is resumed first.
func (s *Server) Stop(mode Mode) error {
	run := s.current()
	if run == nil || !s.Running() {
		return nil
	}
	if err := s.Resume(); err != nil {
		return err
	}
	first := map[Mode]syscall.Signal{Fast: syscall.SIGINT, Immediate: syscall.SIGQUIT, Smart: syscall.SIGTERM}[mode]
	_ = syscall.Kill(run.pid, first)
	if run.endsWithin(stopWithin) {
		return nil
	}
	_ = syscall.Kill(run.pid, syscall.SIGQUIT)
	if run.endsWithin(killWithin) {
		return nil
	}
	return s.Kill()
}

func (p *postmaster) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// Kill ends the server and all its processes by SIGKILL, as a crash does, and waits until they are gone.
func (s *Server) Kill() error {
	run := s.current()
	if run == nil {
		return nil
	}
	all, err := s.freeze(run)
	if err != nil {
		return err
	}
	signalAll(syscall.SIGKILL, all)
	if !run.endsWithin(killWithin) || !s.gone(nil, killWithin, all) {
		return errors.New("kill PostgreSQL: its processes do not end")
	}
	return nil
}

// Pause stops all processes of the server without ending them: clients see a server that does not answer. A paused
// server does not take note of anything until Resume.
func (s *Server) Pause() error {
	run := s.current()
	if run == nil || !s.Running() {
		return errors.New("pause PostgreSQL: it is not running")
	}
	if _, err := s.freeze(run); err != nil {
		return err
	}
	s.mu.Lock()
	s.paused = true
	s.mu.Unlock()
	return nil
}

// freeze pauses the main process before it lists the others, so that none can appear in between.
func (s *Server) freeze(run *postmaster) ([]int, error) {
	signalAll(syscall.SIGSTOP, []int{run.pid})
	poll(nil, time.Second, func() bool {
		p, alive := readProcess(run.pid)
		return !alive || p.state == 'T'
	})
	pids, err := children(run.pid)
	if err != nil {
		return nil, err
	}
	signalAll(syscall.SIGSTOP, pids)
	return append(pids, run.pid), nil
}

// Resume lets a paused server go on; it does nothing to one that is not paused.
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil || !s.paused {
		return nil
	}
	pids, err := children(s.run.pid)
	if err != nil {
		return err
	}
	signalAll(syscall.SIGCONT, pids, []int{s.run.pid})
	s.paused = false
	return nil
}
