package fault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is a role that runs as a program of its own.
type Process struct {
	Name        string
	program     string
	environment []string
	logFile     string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	wanted bool // runs because nobody ended it
	died   []string
}

// NewProcess describes a role's process that Start runs. environment is all that
// it sees, as NAME=value; what it writes is appended to logFile.
func NewProcess(name, program string, environment []string, logFile string) *Process {
	return &Process{Name: name, program: program, environment: environment, logFile: logFile}
}

// PID is the number of the process that was started last.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Start runs the program.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.program)
	cmd.Env = p.environment
	cmd.Stdout, cmd.Stderr = log, log
	// In a group of its own, so that Ctrl-C reaches the campaign first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the %s: %w", p.Name, err)
	}
	exited := make(chan struct{})
	p.cmd, p.exited, p.wanted = cmd, exited, true
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		if p.wanted && p.cmd == cmd {
			p.died = append(p.died, fmt.Sprintf("the %s ended by itself: %v", p.Name, err))
		}
		p.mu.Unlock()
		close(exited)
	}()
	return nil
}

// Died says when the process ended though nobody ended it.
func (p *Process) Died() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.died
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Signal(s)
}

// stopWithin is more than a role's drain takes.
const stopWithin = 30 * time.Second

// End ends the process by a signal and waits; one that does not end is killed,
// and that is an error.
func (p *Process) End(s syscall.Signal) error {
	p.mu.Lock()
	exited := p.exited
	p.wanted = false
	p.mu.Unlock()
	if exited == nil {
		return nil
	}
	if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(stopWithin)
	defer timer.Stop()
	select {
	case <-exited:
		return nil
	case <-timer.C:
		_ = p.Signal(syscall.SIGKILL)
		<-exited
		return fmt.Errorf("the %s did not end within %s of %v", p.Name, stopWithin, s)
	}
}
