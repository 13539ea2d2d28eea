package front

import (
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/xmtp-selfhosted/backend/services/gateway/internal/forward"
)

// NativeConfig is what is enforced in front of grpc-go's transport, which has no
// place of its own for it.
type NativeConfig struct {
	MaxConcurrentStreams uint32
	MaxRequestBytes      int
	MaxHeaderBytes       int
	// ArrivalTimeout is how long a request may take to arrive from its first byte
	// on: each message, and the end of a request that is one message.
	ArrivalTimeout time.Duration
	// ClientStreams holds the methods whose requests are more than one message.
	ClientStreams map[string]bool
	// Budget bounds the messages that are being received.
	Budget *forward.Budget
}

// nativeConn is a connection to grpc-go's transport. It looks at the client's
// frames on their way in: a message that is too long by its frame header is
// answered with OUT_OF_RANGE before it is read, where grpc-go would answer
// RESOURCE_EXHAUSTED; and a call that is not native gRPC is sent elsewhere, where
// grpc-go would answer 415.
type nativeConn struct {
	net.Conn
	config  NativeConfig
	onMixed func()

	in inbound // of the goroutine that reads

	mu      sync.Mutex
	streams map[uint32]*stream
	late    []byte // resets of requests that did not arrive, for whoever reads

	out outbound
}

// stream is a call that the server has not answered completely.
type stream struct {
	message int // bytes of the current message still to come
	prefix  [prefixBytes]byte
	have    int // bytes of the prefix seen
	// answered says that the server's headers are on their way; guarded by the
	// mutex of the outbound side.
	answered bool
	// oneMessage says that the request is complete only when its stream ends: until
	// then the server keeps what has arrived.
	oneMessage bool
	// large says that the message counts against the budget while it arrives.
	large bool

	// The rest is guarded by the mutex of the connection: the server's side ends
	// streams, too.

	// give returns what the current message has of the budget.
	give []func()
	room int  // bytes that the budget still has room for
	over bool // the call is answered or reset: it gets no more room
	// late runs out when the rest of the request does not arrive; nil while nothing
	// is waited for.
	late *time.Timer
}

// prefixBytes is the length of gRPC's own frame header: a flag, and the length
// of the message.
const prefixBytes = 5

func newNativeConn(f found, config NativeConfig, onMixed func()) *nativeConn {
	c := &nativeConn{Conn: f.conn, config: config, onMixed: onMixed, streams: map[uint32]*stream{}}
	c.in = inbound{buffer: f.read, end: len(f.read), passing: len(preface), ackPending: f.settingsSent}
	c.in.headers = hpack.NewDecoder(4096, func(field hpack.HeaderField) {
		switch field.Name {
		case "content-type":
			c.in.contentType = field.Value
		case ":path":
			c.in.path = field.Value
		}
	})
	c.in.headers.SetMaxStringLength(config.MaxHeaderBytes)
	return c
}

// Close also gives back what unfinished messages hold of the budget.
func (c *nativeConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, s := range c.streams {
		s.end()
		delete(c.streams, id)
	}
	return err
}

func (c *nativeConn) stream(id uint32) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

func (c *nativeConn) forget(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil {
		s.end()
		delete(c.streams, id)
	}
}

func (s *stream) end() {
	s.over = true
	s.release()
}

// release is for what has arrived: the call takes room of its own.
func (s *stream) release() {
	if s.late != nil {
		s.late.Stop()
		s.late = nil
	}
	for _, give := range s.give {
		give()
	}
	s.give, s.room = nil, 0
}

// outbound is the server's side of the connection. It knows where frames begin,
// so that frames of our own can go between them.
type outbound struct {
	mu      sync.Mutex
	rest    int // bytes of the current frame still to come
	header  [frameHeaderBytes]byte
	have    int
	waiting []byte // frames of our own that wait for the end of the current one
}

// Write implements net.Conn.
func (c *nativeConn) Write(p []byte) (int, error) {
	o := &c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := c.writeWaiting(); err != nil {
		return 0, err
	}
	c.follow(p)
	n, err := c.Conn.Write(p)
	if err != nil {
		return n, err
	}
	return n, c.writeWaiting()
}

// send writes frames of our own as soon as the current frame has ended.
func (c *nativeConn) send(frames []byte) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.waiting = append(c.out.waiting, frames...)
	// Whoever reads or writes next finds the connection broken.
	_ = c.writeWaiting()
}

// refuse answers a call in the server's place, unless it has its answer.
func (c *nativeConn) refuse(id uint32, s *stream, err error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.stream(id) != s {
		return
	}
	c.forget(id)
	c.out.waiting = append(c.out.waiting, statusFrames(id, s.answered, err)...)
	_ = c.writeWaiting()
}

func (c *nativeConn) writeWaiting() error {
	o := &c.out
	if len(o.waiting) == 0 || o.rest > 0 || o.have > 0 {
		return nil
	}
	frames := o.waiting
	o.waiting = nil
	_, err := c.Conn.Write(frames)
	return err
}

// follow keeps track of the frames that are written.
func (c *nativeConn) follow(p []byte) {
	o := &c.out
	for len(p) > 0 {
		if o.rest > 0 {
			n := min(o.rest, len(p))
			o.rest -= n
			p = p[n:]
			continue
		}
		n := copy(o.header[o.have:], p)
		o.have += n
		p = p[n:]
		if o.have < frameHeaderBytes {
			return
		}
		o.have = 0
		o.rest = frameLength(o.header[:])
		c.followFrame(http2.FrameType(o.header[3]), http2.Flags(o.header[4]), frameStream(o.header[:]))
	}
}

func (c *nativeConn) followFrame(kind http2.FrameType, flags http2.Flags, id uint32) {
	switch {
	case kind == http2.FrameRSTStream, kind == http2.FrameHeaders && flags.Has(http2.FlagHeadersEndStream):
		c.forget(id)
	case kind == http2.FrameHeaders:
		if s := c.stream(id); s != nil {
			s.answered = true
		}
	default:
	}
}
