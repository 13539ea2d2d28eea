package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// process is a role in a process of its own.
type process struct {
	address string
	command *exec.Cmd
}

// streamSide is a streamer and a gateway, a process each, on the databases of the
// dev stack, whose publisher and reader the gateway reaches. So their memory is
// nobody else's.
type streamSide struct{ streamer, gateway *process }

// startStreamSide starts both with a bus, which may be one that carries nothing.
func (s *suite) startStreamSide(ctx context.Context, bus string) (_ *streamSide, err error) {
	side := &streamSide{}
	defer func() {
		if err != nil {
			err = errors.Join(err, side.stop())
		}
	}()
	e := s.stack.endpoints
	if side.streamer, err = s.startRole(ctx, "streamer", "XMTP_REPLICA_URL="+e.ReplicaURL, "XMTP_NATS_URL="+bus); err != nil {
		return nil, err
	}
	side.gateway, err = s.startRole(ctx, "gateway", "XMTP_PUBLISHER_ENDPOINT="+e.Publisher, "XMTP_READER_ENDPOINT="+e.Reader,
		"XMTP_STREAMER_ENDPOINT="+side.streamer.address)
	return side, err
}

func (s *streamSide) stop() error {
	var errs []error
	for _, p := range []*process{s.gateway, s.streamer} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(errs...)
}

// startRole starts the program of a role, which is next to the dev stack's, and
// waits until it serves.
func (s *suite) startRole(ctx context.Context, role string, environment ...string) (*process, error) {
	port, err := freeport.Pick()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	p := &process{address: address, command: exec.Command(filepath.Join(filepath.Dir(s.devstack), role))}
	p.command.Env = append(os.Environ(), append(environment, "XMTP_IDENTIFIER=local.xmtp.dev", "XMTP_LOG_LEVEL=error",
		"XMTP_"+strings.ToUpper(role)+"_LISTEN="+address)...)
	p.command.Stderr = os.Stderr
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start the %s: %w", role, err)
	}
	if err := awaitServing(ctx, address); err != nil {
		return nil, errors.Join(fmt.Errorf("the %s does not serve: %w", role, err), p.stop())
	}
	return p, nil
}

func awaitServing(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for {
		answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *process) stop() error {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	return p.command.Wait()
}

// resident is the memory of a process, in bytes.
func (p *process) resident() (int, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(content), "VmRSS:")
	line, _, _ := strings.Cut(rest, "kB")
	if !found {
		return 0, errors.New("the resident memory of a process cannot be read")
	}
	kilobytes, err := strconv.Atoi(strings.TrimSpace(line))
	return kilobytes << 10, err
}

// resident is the memory of both roles.
func (s *streamSide) resident() (streamer, gateway int, err error) {
	streamer, err = s.streamer.resident()
	if err != nil {
		return 0, 0, err
	}
	gateway, err = s.gateway.resident()
	return streamer, gateway, err
}
