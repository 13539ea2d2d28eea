package front

import (
	"net"

	"golang.org/x/net/http2"
)

// replayConn gives a server the whole connection from its first byte, without
// the acknowledgement of the settings that were sent in the server's place.
type replayConn struct {
	net.Conn
	out []byte // ready for the server
	ack *ackFilter
	in  [4096]byte
}

func newReplayConn(f found) *replayConn {
	c := &replayConn{Conn: f.conn, out: f.read}
	if f.settingsSent {
		c.ack = &ackFilter{rest: len(preface)}
		c.out = c.ack.filter(f.read)
	}
	return c
}

// Read is called by one goroutine at a time.
func (c *replayConn) Read(p []byte) (int, error) {
	for len(c.out) == 0 {
		if c.ack == nil || c.ack.done {
			c.out, c.ack = nil, nil
			return c.Conn.Read(p)
		}
		n, err := c.Conn.Read(c.in[:])
		if err != nil {
			return 0, err
		}
		c.out = c.ack.filter(c.in[:n])
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// ackFilter removes the first acknowledgement of settings from a client's bytes.
type ackFilter struct {
	rest int // bytes of the passing frame still to come
	held []byte
	done bool
}

// filter returns what of the bytes is for the server. A frame header that is not
// whole yet is held back.
func (a *ackFilter) filter(in []byte) []byte {
	var out []byte
	in = append(a.held, in...)
	a.held = nil
	for len(in) > 0 {
		if a.rest > 0 {
			n := min(a.rest, len(in))
			out = append(out, in[:n]...)
			in = in[n:]
			a.rest -= n
			continue
		}
		if len(in) < frameHeaderBytes {
			a.held = append([]byte(nil), in...)
			break
		}
		if in[3] == byte(http2.FrameSettings) && in[4]&byte(http2.FlagSettingsAck) != 0 {
			a.done = true
			return append(out, in[frameHeaderBytes:]...)
		}
		a.rest = frameHeaderBytes + frameLength(in)
	}
	return out
}
