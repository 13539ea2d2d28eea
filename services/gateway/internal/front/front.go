// Package front decides what happens to each connection of the public port:
// native gRPC goes to grpc-go's own transport, which costs a third of net/http,
// and everything else goes to net/http.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Config is how connections are met.
type Config struct {
	// AllHTTP sends every connection to net/http.
	AllHTTP bool
	// TLS is nil for cleartext.
	TLS *tls.Config
	// HeaderTimeout bounds the time up to the first request's headers.
	HeaderTimeout time.Duration
	// MaxHeaderBytes bounds the first request's headers.
	MaxHeaderBytes int
	// MaxConnections bounds the open connections.
	MaxConnections int
	Native         NativeConfig
}

// Splitter accepts connections and hands each to one of two listeners.
type Splitter struct {
	config   Config
	logger   *slog.Logger
	listener net.Listener
	native   *queue
	web      *queue
	slots    chan struct{}
	mixed    *mixedPeers

	mu      sync.Mutex
	peeked  map[net.Conn]struct{} // connections nobody else knows yet
	closing bool
	running sync.WaitGroup
}

// New makes a splitter of a listener, which it owns.
func New(config Config, listener net.Listener, logger *slog.Logger) *Splitter {
	return &Splitter{
		config: config, listener: listener, logger: logger,
		native: newQueue(listener.Addr()), web: newQueue(listener.Addr()),
		slots:  make(chan struct{}, config.MaxConnections),
		mixed:  newMixedPeers(),
		peeked: map[net.Conn]struct{}{},
	}
}

// Native is the listener of native gRPC connections.
func (s *Splitter) Native() net.Listener { return s.native }

// Web is the listener of all other connections.
func (s *Splitter) Web() net.Listener { return s.web }

// Run accepts until ctx ends. When it returns, connections that were not handed
// over are closed.
func (s *Splitter) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = s.listener.Close() })()
	defer s.end()
	for {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := s.accept(ctx)
		if err != nil {
			<-s.slots
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		limited := &slotConn{Conn: conn, release: sync.OnceFunc(func() { <-s.slots })}
		if !s.begin(limited) {
			_ = limited.Close()
			continue
		}
		s.running.Go(func() {
			defer s.done(limited)
			s.meet(limited)
		})
	}
}

// accept waits out a moment without file descriptors.
func (s *Splitter) accept(ctx context.Context) (net.Conn, error) {
	pause := 5 * time.Millisecond
	for {
		conn, err := s.listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return conn, err
		}
		s.logger.Warn("a connection could not be accepted", "cause", err.Error())
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, time.Second)
	}
}

// meet looks at the beginning of a connection and hands it over.
func (s *Splitter) meet(conn net.Conn) {
	raw := conn
	if s.config.TLS != nil {
		secured := tls.Server(conn, s.config.TLS)
		_ = conn.SetDeadline(time.Now().Add(s.config.HeaderTimeout))
		if secured.Handshake() != nil {
			_ = raw.Close()
			return
		}
		_ = conn.SetDeadline(time.Time{})
		conn = secured
	}
	found, err := s.classify(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	if found.native && !s.config.AllHTTP && !s.mixed.has(conn.RemoteAddr()) {
		s.handOver(s.native, newNativeConn(found, s.config.Native, func() { s.mixed.add(conn.RemoteAddr()) }))
		return
	}
	s.handOver(s.web, newReplayConn(found))
}

func (s *Splitter) handOver(to *queue, conn net.Conn) {
	if !to.put(conn) {
		_ = conn.Close()
	}
}

func (s *Splitter) begin(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.peeked[conn] = struct{}{}
	return true
}

func (s *Splitter) done(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peeked, conn)
}

// end closes what is still being looked at.
func (s *Splitter) end() {
	s.mu.Lock()
	s.closing = true
	for conn := range s.peeked {
		_ = conn.Close()
	}
	s.mu.Unlock()
	_ = s.native.Close()
	_ = s.web.Close()
	s.running.Wait()
}

// slotConn gives its slot back when it is closed.
type slotConn struct {
	net.Conn
	release func()
}

func (c *slotConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// queue is a listener of connections that were accepted elsewhere.
type queue struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	close   func()
}

func newQueue(address net.Addr) *queue {
	q := &queue{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	q.close = sync.OnceFunc(func() { close(q.closed) })
	return q
}

func (q *queue) put(conn net.Conn) bool {
	select {
	case q.conns <- conn:
		return true
	case <-q.closed:
		return false
	}
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *queue) Close() error {
	q.close()
	return nil
}

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return q.address }
