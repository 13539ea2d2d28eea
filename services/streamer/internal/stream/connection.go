package stream

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/peer"
)

// Watch makes the connections of a listener tell when they are closed: grpc-go
// forgets then what it has not written, and says so to nobody.
func Watch(l net.Listener) net.Listener { return &watchedListener{l} }

type watchedListener struct{ net.Listener }

func (l *watchedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watched{Conn: conn, left: map[*session]struct{}{}}, nil
}

// watched is a connection, which a stream finds through the address of its peer.
type watched struct {
	net.Conn

	mu     sync.Mutex
	closed bool
	left   map[*session]struct{} // closed, with frames that are not written
}

type watchedAddr struct {
	net.Addr
	conn *watched
}

// RemoteAddr implements net.Conn.
func (c *watched) RemoteAddr() net.Addr { return watchedAddr{c.Conn.RemoteAddr(), c} }

// Close implements net.Conn.
func (c *watched) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	left := c.left
	c.closed, c.left = true, nil
	c.mu.Unlock()
	for s := range left {
		s.dropped()
	}
	return err
}

// connectionOf returns the watched connection of a stream, or nil.
func connectionOf(ctx context.Context) *watched {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	for address := from.Addr; ; {
		if found, ok := address.(watchedAddr); ok {
			return found.conn
		}
		outer, ok := address.(interface{ Unwrap() net.Addr }) // of the server, which wraps connections as well
		if !ok {
			return nil
		}
		address = outer.Unwrap()
	}
}

// keep remembers a session until its frames are written. It is false when the
// connection is gone, and they with it.
func (c *watched) keep(s *session) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.left[s] = struct{}{}
	}
	return !c.closed
}

func (c *watched) forget(s *session) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.left, s)
}
