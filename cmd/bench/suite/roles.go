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
	"time"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
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
	p := &process{address: address}
	p.command, err = startProgram(filepath.Join(filepath.Dir(s.devstack), role), append(environment,
		"XMTP_IDENTIFIER=local.xmtp.dev", "XMTP_LOG_LEVEL=error", "XMTP_"+strings.ToUpper(role)+"_LISTEN="+address)...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := stack.AwaitServing(ctx, address, insecure.NewCredentials()); err != nil {
		return nil, errors.Join(fmt.Errorf("the %s does not serve: %w", role, err), p.stop())
	}
	return p, nil
}

func (p *process) stop() error { return stopProgram(p.command) }

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
