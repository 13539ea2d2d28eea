package rpc

import (
	"context"
	"net"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/peer"
)

// measuredEnd is the label of what was ended because of an answer that stood still.
type measuredEnd = metric.MeasurementOption

var (
	endedCall       = ended("call")
	endedConnection = ended("connection")
)

func ended(what string) measuredEnd {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("ended", what)))
}

// owingListener makes connections that know which answers are owed on them.
type owingListener struct {
	net.Listener
	server *Server
}

func (l owingListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: accepted, server: l.server, owing: map[*owed]bool{}}, nil
}

// conn is a connection of a role to a peer, which is a gateway as a rule. It closes
// itself when it owes short answers and none of its answers was taken for the
// server's time limit.
type conn struct {
	net.Conn
	server *Server

	mu     sync.Mutex
	closed bool
	owing  map[*owed]bool // whether each is short
	short  int
	since  time.Time   // of the last answer that was taken, or the first that is owed
	watch  *time.Timer // runs while short ones are owed
	armed  bool
}

// RemoteAddr also leads back to the connection: it is all of a connection that
// grpc-go lets a handler see.
func (c *conn) RemoteAddr() net.Addr { return peerAddr{c.Conn.RemoteAddr(), c} }

type peerAddr struct {
	net.Addr
	conn *conn
}

// Unwrap is the address as the listener's own connection has it, which may lead back to
// that.
func (a peerAddr) Unwrap() net.Addr { return a.Addr }

// connOf is the connection of a call; nil when it is not one of a role.
func connOf(ctx context.Context) *conn {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	address, ok := from.Addr.(peerAddr)
	if !ok {
		return nil
	}
	return address.conn
}

// owe adds an answer. It reports whether the connection is open.
func (c *conn) owe(o *owed, short bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.owing[o] = short
	if !short {
		return true
	}
	if c.short++; c.short == 1 {
		c.since = time.Now()
		if !c.armed {
			c.arm(c.server.config.AnswerTimeout)
		}
	}
	return true
}

// paid removes an answer that has left.
func (c *conn) paid(o *owed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	short, owing := c.owing[o]
	if !owing {
		return
	}
	delete(c.owing, o)
	c.since = time.Now()
	if short {
		c.short--
	}
}

// arm is called with the lock held.
func (c *conn) arm(after time.Duration) {
	c.armed = true
	if c.watch == nil {
		c.watch = time.AfterFunc(after, c.check)
		return
	}
	c.watch.Reset(after)
}

func (c *conn) check() {
	c.mu.Lock()
	c.armed = false
	still := time.Since(c.since)
	owes, limit := c.short > 0 && !c.closed, c.server.config.AnswerTimeout
	if owes && still < limit {
		c.arm(limit - still)
	}
	c.mu.Unlock()
	if owes && still >= limit {
		c.abandon()
	}
}

// abandon closes a connection that takes nothing.
func (c *conn) abandon() {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if !closed {
		c.server.notTaken(context.Background(), endedConnection)
		_ = c.Close()
	}
}

// Close ends the connection. What it owes will not be freed by anybody.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	owing := c.owing
	c.owing, c.short = nil, 0
	if c.watch != nil {
		c.watch.Stop()
	}
	c.mu.Unlock()
	err := c.Conn.Close()
	for o := range owing {
		o.giveUp()
	}
	return err
}
