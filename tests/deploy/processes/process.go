// Package processes runs the roles as the chart would have them run: each as a
// process of its own, from the environment of its rendered container, several of
// each.
package processes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Build makes the binaries of the roles as `make build` does and returns their
// folder.
func Build(ctx context.Context, repository, dir string, roles ...string) error {
	args := []string{"build", "-o", dir}
	for _, role := range roles {
		args = append(args, "./services/"+role+"/cmd/"+role)
	}
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = repository
	command.Env = append(command.Environ(), "CGO_ENABLED=0", "GOWORK=")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the roles: %w: %s", err, output)
	}
	return nil
}

// Instance is one process of a role.
type Instance struct {
	Role    string
	Address string

	binary      string
	environment map[string]string
	grace       time.Duration

	command *exec.Cmd
	ended   chan error
	log     *logBuffer
}

// NewInstance describes a process that Start runs. grace is how long it may take
// to end.
func NewInstance(dir, role, address string, environment map[string]string, grace time.Duration) *Instance {
	return &Instance{Role: role, Address: address, binary: filepath.Join(dir, role), environment: environment, grace: grace, log: &logBuffer{}}
}

// Start starts the process; Ready says when it serves.
func (i *Instance) Start() error {
	i.command = exec.Command(i.binary)
	i.command.Env = []string{}
	for name, value := range i.environment {
		i.command.Env = append(i.command.Env, name+"="+value)
	}
	i.command.Stderr = i.log
	i.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := i.command.Start(); err != nil {
		return fmt.Errorf("start the %s: %w", i.Role, err)
	}
	i.ended = make(chan error, 1)
	go func(command *exec.Cmd, ended chan<- error) { ended <- command.Wait() }(i.command, i.ended)
	return nil
}

// Ready returns when the instance says that it serves, as the readiness probe
// asks it.
func (i *Instance) Ready(ctx context.Context) error {
	connection, err := grpc.NewClient(i.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	for {
		answer, err := healthv1.NewHealthClient(connection).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return nil
		}
		select {
		case err := <-i.ended:
			return fmt.Errorf("the %s ended: %w: %s", i.Role, err, i.log)
		case <-ctx.Done():
			return fmt.Errorf("the %s did not become ready (%w): %s", i.Role, err, i.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the process as the kubelet does: it asks, and insists when the grace
// period is over, which is an error.
func (i *Instance) Stop() error {
	if i.command == nil {
		return nil
	}
	defer func() { i.command = nil }()
	if err := i.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		_ = err // it has ended: Wait says how
	}
	select {
	case err := <-i.ended:
		if err != nil {
			return fmt.Errorf("the %s ended: %w: %s", i.Role, err, i.log)
		}
		return nil
	case <-time.After(i.grace):
		_ = i.command.Process.Kill()
		return fmt.Errorf("the %s was still there after %v: %s", i.Role, i.grace, i.log)
	}
}

// logBuffer keeps the end of what a process wrote.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

const logBytes = 16 << 10

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if extra := l.text.Len() - logBytes; extra > 0 {
		l.text.Next(extra)
	}
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
