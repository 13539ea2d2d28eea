package attack

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attackers connect from an address of their own, as strangers do: a bound for an
// address must not hit those who share the machine with them.
var attackers = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}

// dial opens a connection that ends with the attack at the latest. nil: there was
// none to be had.
func (c *crowd) dial(protocol string) net.Conn {
	dialer := net.Dialer{LocalAddr: attackers, Timeout: 10 * time.Second}
	plain, err := dialer.DialContext(c.ctx, "tcp", c.target.Address)
	if err != nil {
		c.ended("not connected")
		return nil
	}
	deadline, _ := c.ctx.Deadline()
	_ = plain.SetDeadline(deadline)
	// What the kernel holds for those who do not read is not the target's.
	_ = plain.(*net.TCPConn).SetReadBuffer(64 << 10)
	c.note(func(o *Outcome) { o.Connections++ })
	if !c.target.TLS {
		return plain
	}
	secured := tls.Client(plain, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}) //nolint:gosec // a test's own certificate
	if err := secured.HandshakeContext(c.ctx); err != nil {
		_ = plain.Close()
		c.ended("no TLS")
		return nil
	}
	return secured
}

// connection speaks HTTP/2 frame by frame, as no library would.
type connection struct {
	net.Conn
	crowd  *crowd
	framer *http2.Framer
	// reads says whether it takes what arrives; else it opens no window.
	reads bool
	// places are the streams that may be open at a time.
	places chan struct{}
	gone   chan struct{} // closed when nothing arrives any more

	writing sync.Mutex // of frames, the encoder and next
	block   bytes.Buffer
	encoder *hpack.Encoder
	next    uint32

	mu      sync.Mutex
	changed *sync.Cond
	window  int64            // that the other side gives to the connection
	initial int64            // and at first to a stream
	streams map[uint32]int64 // open ones, and what each may send
	ended   bool
}

// openStreams is the number that API-132 allows a connection.
const openStreams = 100

// speak begins HTTP/2 on a connection.
func (c *crowd) speak(conn net.Conn, window uint32, reads bool) *connection {
	h := &connection{
		Conn: conn, crowd: c, framer: http2.NewFramer(conn, conn), reads: reads, places: make(chan struct{}, openStreams), gone: make(chan struct{}),
		next: 1, window: 65535, initial: 65535, streams: map[uint32]int64{},
	}
	h.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.encoder = hpack.NewEncoder(&h.block)
	h.changed = sync.NewCond(&h.mu)
	_, _ = conn.Write([]byte(http2.ClientPreface))
	_ = h.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	c.clients.Go(h.read)
	return h
}

// wait returns when the connection or the attack has ended.
func (h *connection) wait() {
	select {
	case <-h.gone:
	case <-h.crowd.ctx.Done():
	}
}

func (h *connection) isOver() bool {
	select {
	case <-h.gone:
		return true
	default:
		return false
	}
}

// read follows what the other side says until the end.
func (h *connection) read() {
	defer close(h.gone)
	for {
		frame, err := h.framer.ReadFrame()
		if err != nil && !errors.As(err, new(http2.StreamError)) {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				h.crowd.ended("connection closed")
			}
			break
		}
		if err == nil {
			h.take(frame)
		}
	}
	_ = h.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.changed.Broadcast()
}

func (h *connection) take(frame http2.Frame) {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		for _, field := range f.Fields {
			if field.Name == "grpc-status" {
				h.crowd.told(codeOf(field.Value))
			}
		}
		if f.StreamEnded() {
			if status := f.PseudoValue("status"); status != "200" && status != "" {
				h.crowd.ended("HTTP " + status)
			}
			h.close(f.StreamID)
		}
	case *http2.DataFrame:
		h.received(f)
	case *http2.RSTStreamFrame:
		h.crowd.ended("stream reset: " + f.ErrCode.String())
		h.close(f.StreamID)
	case *http2.GoAwayFrame:
		h.crowd.ended("GOAWAY: " + f.ErrCode.String())
	case *http2.PingFrame:
		if !f.IsAck() {
			h.write(func() error { return h.framer.WritePing(true, f.Data) })
		}
	case *http2.WindowUpdateFrame:
		h.widen(f.StreamID, int64(f.Increment))
	case *http2.SettingsFrame:
		h.settings(f)
	}
}

func (h *connection) received(f *http2.DataFrame) {
	n := uint32(len(f.Data()))
	h.crowd.note(func(o *Outcome) { o.Received += int64(n) })
	if h.reads && n > 0 {
		h.write(func() error {
			return errors.Join(h.framer.WriteWindowUpdate(0, n), h.framer.WriteWindowUpdate(f.StreamID, n))
		})
	}
	if f.StreamEnded() {
		h.close(f.StreamID)
	}
}

func (h *connection) settings(f *http2.SettingsFrame) {
	if f.IsAck() {
		return
	}
	if value, given := f.Value(http2.SettingInitialWindowSize); given {
		h.mu.Lock()
		for id := range h.streams {
			h.streams[id] += int64(value) - h.initial
		}
		h.initial = int64(value)
		h.changed.Broadcast()
		h.mu.Unlock()
	}
	h.write(h.framer.WriteSettingsAck)
}

func (h *connection) widen(stream uint32, by int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if stream == 0 {
		h.window += by
	} else if _, open := h.streams[stream]; open {
		h.streams[stream] += by
	}
	h.changed.Broadcast()
}

// close gives a stream's place to another.
func (h *connection) close(stream uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, open := h.streams[stream]; open {
		delete(h.streams, stream)
		h.changed.Broadcast()
		<-h.places
	}
}

// write sends a frame and says whether the connection took it.
func (h *connection) write(frame func() error) bool {
	h.writing.Lock()
	defer h.writing.Unlock()
	return frame() == nil
}

// open begins a call once there is a place for it. 0: the connection is over.
func (h *connection) open(header []hpack.HeaderField) uint32 {
	select {
	case h.places <- struct{}{}:
	case <-h.gone:
		return 0
	case <-h.crowd.ctx.Done():
		return 0
	}
	var id uint32
	sent := h.write(func() error {
		id = h.begin()
		return h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.encode(header), EndHeaders: true})
	})
	if !sent {
		return 0
	}
	h.crowd.note(func(o *Outcome) { o.Calls++ })
	return id
}

// begin takes the next stream's number; the caller is writing.
func (h *connection) begin() uint32 {
	id := h.next
	h.next += 2
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams[id] = h.initial
	return id
}

// encode is a header block; the caller is writing.
func (h *connection) encode(header []hpack.HeaderField) []byte {
	h.block.Reset()
	for _, field := range header {
		_ = h.encoder.WriteField(field) // to memory
	}
	return h.block.Bytes()
}

const frameBytes = 16 << 10

// send sends bytes of a stream's body as its windows allow, and says whether all
// went out.
func (h *connection) send(stream uint32, body []byte, ends bool) bool {
	for len(body) > 0 {
		n := h.allowed(stream, min(len(body), frameBytes))
		if n == 0 {
			return false
		}
		part := body[:n]
		body = body[n:]
		if !h.write(func() error { return h.framer.WriteData(stream, ends && len(body) == 0, part) }) {
			return false
		}
		h.crowd.note(func(o *Outcome) { o.Sent += int64(n) })
	}
	return true
}

// allowed waits for room for some of n bytes. 0: the stream is over.
func (h *connection) allowed(stream uint32, n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		room, open := h.streams[stream]
		if !open || h.ended || h.crowd.ctx.Err() != nil {
			return 0
		}
		if granted := min(int64(n), room, h.window); granted > 0 {
			h.streams[stream] -= granted
			h.window -= granted
			return int(granted)
		}
		h.changed.Wait()
	}
}
