package front

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

const (
	// largeMessage is how long a message is before what arrived of it counts
	// against the budget. Smaller ones are bounded by the number of streams.
	largeMessage = 64 << 10
	// roomStep is how much room a message takes from the budget at a time.
	roomStep = 256 << 10
	// roomPatience is how long a connection waits for room.
	roomPatience = 10 * time.Second
	// smallBuffer is for connections that carry small messages or nothing.
	smallBuffer = 4 << 10
	largeBuffer = 32 << 10
	// maxHeaderBlock bounds the frames of one header block that are held.
	maxHeaderBlock = 64 << 10
)

// inbound is the client's side of a native connection. The bytes of the buffer
// are in three parts: up to begin they were handed to the server, up to checked
// they may be, and up to end they were read.
type inbound struct {
	buffer              []byte
	begin, checked, end int
	passing             int    // bytes of a frame that need no look
	inject              []byte // frames of our own that the server gets next
	blind               bool   // the rest is for the server to refuse
	ackPending          bool   // the acknowledgement of our settings is to come
	goneAway            bool   // no call of this connection is accepted any more
	lastStream          uint32
	headers             *hpack.Decoder
	late                []byte // frames of our own for the end of the current frame
	contentType, path   string // of the block that is being decoded
}

// Read implements net.Conn for the one goroutine that reads.
func (c *nativeConn) Read(p []byte) (int, error) {
	in := &c.in
	for {
		switch {
		case len(in.inject) > 0:
			n := copy(p, in.inject)
			in.inject = in.inject[n:]
			return n, nil
		case in.checked > in.begin:
			n := copy(p, in.buffer[in.begin:in.checked])
			in.begin += n
			return n, nil
		case len(in.late) > 0 && in.passing == 0:
			in.inject, in.late = in.late, nil
		case c.inspect():
		default:
			if err := c.fill(); err != nil && !c.woken(err) {
				return 0, err
			}
		}
	}
}

// fill reads more, with room for at least a whole frame if need be.
func (c *nativeConn) fill() error {
	in := &c.in
	if in.begin > 0 {
		in.end = copy(in.buffer, in.buffer[in.begin:in.end])
		in.begin, in.checked = 0, 0
	}
	in.buffer = in.buffer[:cap(in.buffer)]
	switch {
	case in.end == len(in.buffer), len(in.buffer) < smallBuffer:
		in.grow(max(smallBuffer, 2*len(in.buffer)))
	case in.passing > len(in.buffer) && len(in.buffer) < largeBuffer:
		in.grow(largeBuffer) // a long message: fewer and larger reads
	}
	n, err := c.Conn.Read(in.buffer[in.end:])
	in.end += n
	if n > 0 {
		return nil
	}
	return err
}

func (in *inbound) grow(size int) {
	grown := make([]byte, size)
	copy(grown, in.buffer[:in.end])
	in.buffer = grown
}

// inspect looks at the next frame, when everything before it was handed over. It
// reports false when more bytes are needed.
func (c *nativeConn) inspect() bool {
	in := &c.in
	frame := in.buffer[in.begin:in.end]
	switch {
	case len(frame) == 0:
		return false
	case in.blind:
		in.checked = in.end
		return true
	case in.passing > 0:
		n := min(in.passing, len(frame))
		in.passing -= n
		in.checked += n
		return true
	case len(frame) < frameHeaderBytes:
		return false
	case frameLength(frame) > maxFrameBytes:
		in.blind = true
		return true
	default:
		return c.inspectFrame(frame)
	}
}

func (c *nativeConn) inspectFrame(frame []byte) bool {
	in := &c.in
	flags, id := http2.Flags(frame[4]), frameStream(frame)
	switch http2.FrameType(frame[3]) {
	case http2.FrameHeaders:
		return c.inspectHeaders(frame, id)
	case http2.FrameData:
		return c.inspectData(frame, id, flags)
	case http2.FrameSettings:
		if in.ackPending && flags.Has(http2.FlagSettingsAck) {
			in.ackPending = false
			in.drop(frameHeaderBytes)
			return true
		}
	case http2.FrameRSTStream:
		c.forget(id)
	default:
	}
	in.passing = frameHeaderBytes + frameLength(frame)
	return true
}

// drop leaves the next bytes out.
func (in *inbound) drop(length int) {
	in.begin += length
	in.checked = in.begin
}

// inspectHeaders reads a whole header block, since the state of its compression
// depends on every one.
func (c *nativeConn) inspectHeaders(frame []byte, id uint32) bool {
	in := &c.in
	block, length, whole := headerBlock(frame)
	if !whole {
		in.blind = len(frame) > maxHeaderBlock // grpc-go has its own bound
		return in.blind
	}
	if in.goneAway {
		// Nothing of the new headers reaches grpc-go, so neither does their
		// effect on the compression: no block may from now on.
		return c.sendElsewhere(id, length)
	}
	in.contentType, in.path = "", ""
	if _, err := in.headers.Write(block); err != nil || in.headers.Close() != nil {
		in.blind = true
		return true
	}
	if id > in.lastStream {
		if !isNative(in.contentType) {
			return c.sendElsewhere(id, length)
		}
		in.lastStream = id
		c.mu.Lock()
		c.streams[id] = &stream{oneMessage: !c.config.ClientStreams[in.path]}
		c.mu.Unlock()
	}
	in.passing = length
	return true
}

// headerBlock joins the fragments of a block and returns the length of its frames.
func headerBlock(frames []byte) (block []byte, length int, whole bool) {
	for first := true; ; first = false {
		rest := frames[length:]
		if len(rest) < frameHeaderBytes || len(rest) < frameHeaderBytes+frameLength(rest) {
			return nil, 0, false
		}
		flags := http2.Flags(rest[4])
		fragment := rest[frameHeaderBytes : frameHeaderBytes+frameLength(rest)]
		length += frameHeaderBytes + frameLength(rest)
		if first {
			fragment = unpadded(fragment, flags.Has(http2.FlagHeadersPadded), flags.Has(http2.FlagHeadersPriority))
		}
		if first && flags.Has(http2.FlagHeadersEndHeaders) {
			return fragment, length, true
		}
		block = append(block, fragment...)
		if flags.Has(http2.FlagHeadersEndHeaders) { // the same bit for CONTINUATION
			return block, length, true
		}
	}
}

// unpadded is a payload without its padding and priority. A malformed one is
// empty here and refused by grpc-go.
func unpadded(payload []byte, padded, priority bool) []byte {
	padding := 0
	if padded {
		if len(payload) == 0 {
			return nil
		}
		padding = int(payload[0])
		payload = payload[1:]
	}
	if priority {
		payload = payload[min(5, len(payload)):]
	}
	return payload[:max(0, len(payload)-padding)]
}

// sendElsewhere refuses a call that is not native gRPC as never processed, and
// asks the client for another connection, which will go to net/http.
func (c *nativeConn) sendElsewhere(id uint32, length int) bool {
	in := &c.in
	var frames []byte
	if !in.goneAway {
		in.goneAway = true
		c.onMixed()
		frames = goAwayFrame(in.lastStream)
	}
	in.drop(length)
	c.send(append(frames, resetFrame(id, http2.ErrCodeRefusedStream)...))
	return true
}

// inspectData follows the messages of a stream through its DATA frames.
func (c *nativeConn) inspectData(frame []byte, id uint32, flags http2.Flags) bool {
	in := &c.in
	length := frameHeaderBytes + frameLength(frame)
	in.passing = length
	s := c.stream(id)
	if s == nil {
		return true
	}
	var refusal error
	padded := flags.Has(http2.FlagDataPadded)
	if !padded && s.message >= frameLength(frame) { // no message begins in this frame
		refusal = c.received(s, frameLength(frame))
	} else {
		if len(frame) < length {
			in.passing = 0
			return false
		}
		refusal = c.scan(s, unpadded(frame[frameHeaderBytes:length], padded, false))
	}
	if refusal != nil {
		// grpc-go learns that the client cancelled. The frame itself follows: it
		// counts for the flow control of the connection.
		c.refuse(id, s, refusal)
		in.inject = resetFrame(id, http2.ErrCodeCancel)
		return true
	}
	c.expect(id, s, flags.Has(http2.FlagDataEndStream))
	return true
}

// scan reads the messages of a whole payload.
func (c *nativeConn) scan(s *stream, payload []byte) error {
	for len(payload) > 0 {
		if s.message > 0 {
			n := min(s.message, len(payload))
			if err := c.received(s, n); err != nil {
				return err
			}
			payload = payload[n:]
			continue
		}
		n := copy(s.prefix[s.have:], payload)
		s.have += n
		payload = payload[n:]
		if s.have < prefixBytes {
			return nil
		}
		s.have = 0
		s.message = int(binary.BigEndian.Uint32(s.prefix[1:]))
		s.large = s.message > largeMessage
		if s.message == 0 {
			c.arrived(s)
		}
		if s.message > c.config.MaxRequestBytes {
			return rpc.TooLong(s.message, c.config.MaxRequestBytes)
		}
	}
	return nil
}

// received counts n bytes of a message, and waits until the budget has room for
// them.
func (c *nativeConn) received(s *stream, n int) error {
	s.message -= n
	if s.message == 0 {
		c.arrived(s)
		return nil
	}
	if !s.large {
		return nil
	}
	for c.spend(s, n); c.lacksRoom(s); {
		ctx, cancel := context.WithTimeout(context.Background(), roomPatience)
		give, err := c.config.Budget.Take(ctx, roomStep)
		cancel()
		if err != nil {
			return err
		}
		c.grant(s, give)
	}
	return nil
}

func (c *nativeConn) spend(s *stream, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.room -= n
}

func (c *nativeConn) lacksRoom(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.room < 0 && !s.over
}

// grant gives the stream a step of room, which goes straight back when the stream
// has ended while its message waited: nobody would return it later.
func (c *nativeConn) grant(s *stream, give func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.over {
		give()
		return
	}
	s.give = append(s.give, give)
	s.room += roomStep
}

// arrived is for a complete message. That of a client's stream is the server's; a
// request of one message keeps its room until its end has come, too.
func (c *nativeConn) arrived(s *stream) {
	if s.oneMessage {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.release()
}

// expect waits for the rest of a request, after each of its frames: grpc-go would
// wait for ever, and keep what it has.
func (c *nativeConn) expect(id uint32, s *stream, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case ended:
		s.release()
	case s.late == nil && !s.over && (s.oneMessage || s.message > 0 || s.have > 0):
		s.late = time.AfterFunc(c.config.ArrivalTimeout, func() { c.expire(id, s) })
	}
}

// expire ends a call whose request did not arrive, for the server and for the
// client, in this order: a client that reads nothing holds up what is sent to it.
func (c *nativeConn) expire(id uint32, s *stream) {
	if c.giveUp(id, s) {
		c.refuse(id, s, fault.Errorf(fault.Late, "the rest of the request did not arrive within %v, expected all of it", c.config.ArrivalTimeout))
	}
}

// giveUp wakes the goroutine that reads, by a deadline in the past, unless the
// request has arrived at the last moment.
func (c *nativeConn) giveUp(id uint32, s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.late == nil {
		return false
	}
	s.end()
	c.late = append(c.late, resetFrame(id, http2.ErrCodeCancel)...)
	_ = c.SetReadDeadline(time.Unix(1, 0)) // of a broken connection, whose reads end anyway
	return true
}

// woken reports whether a read ended because of giveUp.
func (c *nativeConn) woken(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.late) == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.in.late = append(c.in.late, c.late...)
	c.late = nil
	_ = c.SetReadDeadline(time.Time{})
	return true
}
