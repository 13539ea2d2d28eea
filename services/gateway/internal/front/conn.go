package front

import (
	"context"
	"net"
	"sync"

	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
)

// conn is an accepted connection. It counts what the client takes, and gives back at
// its end what the client had.
type conn struct {
	net.Conn

	caller      *caller.Caller
	offersHTTP1 bool // in its TLS handshake
	end         func() error
}

// socketBuffer is what the system keeps of what a client has not taken, in bytes.
// Left to itself it keeps megabytes: they count for the process's memory, and nobody
// sees that the client takes nothing.
const socketBuffer = 256 << 10

func (s *Splitter) newConn(accepted net.Conn, from *caller.Address, leave func()) *conn {
	if tcp, ok := accepted.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(socketBuffer) // the connection goes on without
	}
	c := &conn{Conn: accepted}
	c.end = sync.OnceValue(func() error {
		err := accepted.Close()
		c.caller.Close()
		leave()
		return err
	})
	c.caller = s.config.Budgets.New(from, func() { _ = c.end() })
	return c
}

// RemoteAddr implements net.Conn. The address leads to the caller.
func (c *conn) RemoteAddr() net.Addr { return caller.Addr{Addr: c.Conn.RemoteAddr(), Caller: c.caller} }

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.caller.Wrote(n)
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error { return c.end() }

// Context is for http.Server.ConnContext: the contexts of the connection's calls lead
// to its caller.
func Context(ctx context.Context, of net.Conn) context.Context {
	if address, ok := of.RemoteAddr().(caller.Addr); ok {
		return caller.With(ctx, address.Caller)
	}
	return ctx
}

// replayConn gives a server the whole connection from its first byte.
type replayConn struct {
	net.Conn

	replay []byte     // ready for the server
	ack    *ackFilter // nil when it has done its part
	size   int        // of the buffer, 0 for a server that has its own
	buffer []byte
	ready  []byte // the part of the buffer that was not read
}

// nativeBuffer is the buffer of a connection for grpc-go, which would keep a larger
// one for each.
const nativeBuffer = 4 << 10

func newReplayConn(f *found, size int) *replayConn {
	c := &replayConn{Conn: f.conn, replay: f.read, size: size}
	if f.settingsSent {
		c.ack = &ackFilter{rest: len(preface)}
		c.replay = c.ack.filter(f.read)
	}
	return c
}

// Read is called by one goroutine at a time.
func (c *replayConn) Read(p []byte) (int, error) {
	for len(c.replay) == 0 {
		c.replay = nil
		if c.ack != nil && c.ack.done {
			c.ack = nil
		}
		if c.ack == nil {
			return c.read(p)
		}
		n, err := c.read(p)
		if err != nil {
			return 0, err
		}
		c.replay = c.ack.filter(p[:n])
	}
	n := copy(p, c.replay)
	c.replay = c.replay[n:]
	return n, nil
}

// read is a read through the buffer.
func (c *replayConn) read(p []byte) (int, error) {
	if len(c.ready) == 0 {
		if len(p) >= c.size {
			return c.Conn.Read(p)
		}
		if c.buffer == nil {
			c.buffer = make([]byte, c.size)
		}
		n, err := c.Conn.Read(c.buffer)
		if n == 0 {
			return 0, err
		}
		c.ready = c.buffer[:n]
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}
