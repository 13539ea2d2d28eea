// Package natslocal runs a NATS server inside the process, on loopback, for the dev stack and for tests.
package natslocal

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// readyWithin bounds the wait for the listener, which opens in milliseconds.
const readyWithin = 10 * time.Second

// freePortTries is how often another free port is taken when a chosen one is gone by the time NATS listens on it.
const freePortTries = 5

// ErrPortTaken is the reason Start returns when another process listens on the wanted port.
var ErrPortTaken = errors.New("the port is taken")

// Options are the settings of a server. The zero value is a server on a free port with NATS's own limits.
type Options struct {
	// Port on 127.0.0.1; 0 picks a free one.
	Port int
	// MaxPayload bounds one message in bytes; 0 is the NATS default of 1 MiB.
	MaxPayload int32
}

// Server is a NATS server in this process. Its methods may be called from any goroutine.
type Server struct {
	options Options // with the port that was chosen

	mu      sync.Mutex
	running *server.Server // nil while stopped
}

// Start runs a server and returns once clients can connect. It writes no log.
func Start(options Options) (*Server, error) {
	if options.Port != 0 {
		s := &Server{options: options}
		if err := s.Restart(); err != nil {
			return nil, err
		}
		return s, nil
	}
	var last error
	for range freePortTries {
		port, err := freeport.Pick()
		if err != nil {
			return nil, fmt.Errorf("start NATS: %w", err)
		}
		options.Port = port
		s := &Server{options: options}
		if last = s.Restart(); last == nil {
			return s, nil
		}
	}
	return nil, last
}

// URL is where clients connect; it stays the same across Stop and Restart.
func (s *Server) URL() string {
	return "nats://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.options.Port))
}

// Port is the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.options.Port }

// Stop closes all connections and waits for the server's goroutines. Stopping a stopped server does nothing.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

func (s *Server) stop() {
	if s.running == nil {
		return
	}
	s.running.Shutdown()
	s.running.WaitForShutdown()
	s.running = nil
}

// Restart stops the server if it runs and starts it again on the same port, without any of its earlier state.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	// NATS reports a failed listen only to its log; look first, so that the caller gets the reason.
	if err := freeport.Check(s.options.Port); err != nil {
		return fmt.Errorf("start NATS on 127.0.0.1:%d: %w: %w", s.options.Port, ErrPortTaken, err)
	}
	started, err := server.NewServer(&server.Options{
		ServerName: "xmtp-local",
		Host:       "127.0.0.1",
		Port:       s.options.Port,
		MaxPayload: s.options.MaxPayload,
		NoLog:      true,
		NoSigs:     true, // the process that holds this server decides about signals
	})
	if err != nil {
		return fmt.Errorf("configure NATS: %w", err)
	}
	started.Start()
	s.running = started
	if !started.ReadyForConnections(readyWithin) {
		s.stop()
		return fmt.Errorf("start NATS on 127.0.0.1:%d: not ready within %s", s.options.Port, readyWithin)
	}
	return nil
}
