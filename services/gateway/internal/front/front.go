// Package front decides what happens to each connection of the public port:
// native gRPC goes to grpc-go's own transport, which costs a third of net/http,
// and everything else goes to net/http.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
)

// Config is how connections are met.
type Config struct {
	// AllHTTP sends every connection to net/http.
	AllHTTP bool
	// TLS is nil for cleartext.
	TLS *tls.Config
	// HeaderTimeout bounds the time up to the first request's headers.
	HeaderTimeout time.Duration
	// MaxConnections bounds the open connections; more wait to be accepted.
	MaxConnections int
	// MaxPerAddress bounds those of one address, or of one network of 64 bits in IPv6;
	// more are closed.
	MaxPerAddress int
	// MaxConcurrentStreams is announced to clients.
	MaxConcurrentStreams uint32
	// Patience is how long a client may take nothing of what it is owed.
	Patience time.Duration
	// Budgets are those of the callers.
	Budgets caller.Budgets
}

// Splitter accepts connections and hands each to one of two listeners.
type Splitter struct {
	config   Config
	logger   *slog.Logger
	listener net.Listener
	native   *queue
	web      *queue
	slots    chan struct{}

	mu        sync.Mutex
	open      map[*conn]struct{}
	peeked    map[*conn]struct{} // those that nobody else knows yet
	addresses map[netip.Addr]*address
	closing   bool
	running   sync.WaitGroup
}

// New makes a splitter of a listener, which it owns.
func New(config Config, listener net.Listener, logger *slog.Logger) *Splitter {
	if config.TLS != nil {
		config.TLS = noting(config.TLS)
	}
	return &Splitter{
		config: config, listener: listener, logger: logger,
		native: newQueue(listener.Addr()), web: newQueue(listener.Addr()),
		slots: make(chan struct{}, config.MaxConnections),
		open:  map[*conn]struct{}{}, peeked: map[*conn]struct{}{}, addresses: map[netip.Addr]*address{},
	}
}

// noting is a configuration that notes what clients offer in their handshakes.
func noting(config *tls.Config) *tls.Config {
	noted, inner := config.Clone(), config.GetConfigForClient
	noted.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if c, ok := hello.Conn.(*conn); ok {
			c.offersHTTP1 = slices.Contains(hello.SupportedProtos, "http/1.1")
		}
		if inner == nil {
			return nil, nil //nolint:nilnil // the configuration itself
		}
		return inner(hello)
	}
	return noted
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
	s.running.Go(func() { s.watch(ctx) })
	for {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		accepted, err := s.accept(ctx)
		if err != nil {
			<-s.slots
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		c, ok := s.begin(accepted)
		if !ok {
			<-s.slots
			_ = accepted.Close()
			continue
		}
		s.running.Go(func() {
			defer s.done(c)
			s.meet(c)
		})
	}
}

// watch closes the connections of clients that take nothing of what they are owed.
func (s *Splitter) watch(ctx context.Context) {
	ticker := time.NewTicker(s.config.Patience / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, c := range s.stalled(now) {
				s.logger.Debug("a connection was closed whose client took nothing of its answers")
				_ = c.Close()
			}
		}
	}
}

func (s *Splitter) stalled(now time.Time) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*conn
	for c := range s.open {
		if c.caller.Stalls(now, s.config.Patience) {
			found = append(found, c)
		}
	}
	return found
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
func (s *Splitter) meet(c *conn) {
	var met net.Conn = c
	if s.config.TLS != nil {
		secured := tls.Server(c, s.config.TLS)
		_ = c.SetDeadline(time.Now().Add(s.config.HeaderTimeout))
		if secured.Handshake() != nil {
			_ = c.Close()
			return
		}
		_ = c.SetDeadline(time.Time{})
		met = secured
	}
	found, err := s.classify(met, c.offersHTTP1)
	if err != nil {
		_ = met.Close()
		return
	}
	if found.native && !s.config.AllHTTP {
		s.handOver(s.native, newReplayConn(found, nativeBuffer))
		return
	}
	s.handOver(s.web, newReplayConn(found, 0))
}

func (s *Splitter) handOver(to *queue, conn net.Conn) {
	if !to.put(conn) {
		_ = conn.Close()
	}
}

// address is what the open connections of one address have together.
type address struct {
	caller.Address

	connections int
}

// begin counts a connection. It reports whether its address may have one more.
func (s *Splitter) begin(accepted net.Conn) (*conn, bool) {
	name := addressOf(accepted.RemoteAddr())
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.addresses[name]
	if from == nil {
		from = &address{}
	}
	if s.closing || from.connections >= s.config.MaxPerAddress {
		return nil, false
	}
	from.connections++
	s.addresses[name] = from
	var c *conn
	c = s.newConn(accepted, &from.Address, func() { s.leave(c, name) })
	s.open[c] = struct{}{}
	s.peeked[c] = struct{}{}
	return c, true
}

// leave is for a connection that has ended.
func (s *Splitter) leave(c *conn, name netip.Addr) {
	<-s.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	from := s.addresses[name]
	if from.connections--; from.connections == 0 {
		delete(s.addresses, name)
	}
}

// addressOf is one client as far as addresses tell: a network of 64 bits in IPv6,
// where everybody has that many.
func addressOf(remote net.Addr) netip.Addr {
	parsed, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return netip.Addr{}
	}
	address := parsed.Addr().Unmap().WithZone("")
	if address.Is6() {
		prefix, _ := address.Prefix(64) // never fails for IPv6
		return prefix.Addr()
	}
	return address
}

func (s *Splitter) done(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peeked, c)
}

// end closes what is still being looked at.
func (s *Splitter) end() {
	s.mu.Lock()
	s.closing = true
	peeked := slices.Collect(maps.Keys(s.peeked))
	s.mu.Unlock()
	for _, c := range peeked {
		_ = c.Close()
	}
	_ = s.native.Close()
	_ = s.web.Close()
	s.running.Wait()
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
