package stream

import (
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// fieldOf is the number of a frame kind in the oneof of each response.
var (
	bidiFields = map[delivery.Kind]protowire.Number{
		delivery.Started: 1, delivery.Applied: 2, delivery.Messages: 3, delivery.Ping: 4, delivery.Pong: 5,
	}
	staticFields = map[delivery.Kind]protowire.Number{
		delivery.Started: 1, delivery.Messages: 2, delivery.Keepalive: 3,
	}
)

// Field numbers of the frames.
const (
	startedInterval = 1
	startedTargets  = 2
	appliedID       = 1
	appliedTargets  = 2
	targetTopic     = 1
	targetThrough   = 2
	messagesField   = 1
)

// encode writes a frame as the response message of its stream, and lets go of what
// it was made of.
func (s *session) encode(f *delivery.Frame) *rpc.Frame {
	w := &writing{session: s, frame: f}
	if f.Kind == delivery.Messages {
		w.messages()
	} else {
		w.control()
	}
	f.Targets, f.Envelopes = nil, nil
	return &rpc.Frame{Data: w.buffers}
}

// writing is a frame on its way into buffers and out of them.
type writing struct {
	session *session
	frame   *delivery.Frame
	buffers mem.BufferSlice
	// unwritten counts the buffers that the transport gives back.
	unwritten atomic.Int32
}

// control writes a frame without envelopes into one buffer.
func (w *writing) control() {
	f := w.frame
	targets := protowire.Number(appliedTargets)
	var head []byte
	switch f.Kind {
	case delivery.Started:
		targets = startedTargets
		head = appendVarint(head, startedInterval, uint64(w.session.hub.limits.KeepaliveInterval.Milliseconds()))
	case delivery.Applied:
		head = appendVarint(head, appliedID, f.ID)
	case delivery.Ping, delivery.Pong:
		head = appendVarint(head, onlyField, f.Nonce)
	}
	size := len(head) + targetsSize(f.Targets)
	buffer := w.buffer(size + maxHead)
	*buffer = protowire.AppendTag((*buffer)[:0], w.session.fields[f.Kind], protowire.BytesType)
	*buffer = protowire.AppendVarint(*buffer, uint64(size))
	*buffer = append(*buffer, head...)
	*buffer = appendTargets(*buffer, targets, f.Targets)
	w.append(buffer, (*pooled)(w))
}

// buffer returns one with room for so many bytes, at the least. The transport gives
// back those above a certain length only: each frame whose end matters has one.
func (w *writing) buffer(size int) *[]byte {
	if w.frame.Owed && len(w.buffers) == 0 {
		size = max(size, leastOwed)
	}
	return rpc.Buffers().Get(size)
}

// leastOwed is longer than what grpc-go drops without giving it back.
const leastOwed = 2 << 10

// append adds a buffer to the frame.
func (w *writing) append(buffer *[]byte, owner mem.BufferPool) {
	if !mem.IsBelowBufferPoolingThreshold(cap(*buffer)) {
		w.unwritten.Add(1)
	}
	w.buffers = append(w.buffers, mem.NewBuffer(buffer, owner))
}

func appendVarint(dst []byte, number protowire.Number, value uint64) []byte {
	if value == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, number, protowire.VarintType), value)
}

func appendTargets(dst []byte, number protowire.Number, targets []delivery.Target) []byte {
	for i := range targets {
		t := &targets[i]
		dst = protowire.AppendTag(dst, number, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(targetSize(t)))
		dst = envelope.AppendTopicField(dst, targetTopic, t.Topic)
		dst = appendVarint(dst, targetThrough, uint64(t.Through))
	}
	return dst
}

func targetSize(t *delivery.Target) int {
	size := 1 + protowire.SizeBytes(envelope.TopicSize(t.Topic))
	if t.Through > 0 {
		size += 1 + protowire.SizeVarint(uint64(t.Through))
	}
	return size
}

func targetsSize(targets []delivery.Target) (size int) {
	for i := range targets {
		size += 1 + protowire.SizeBytes(targetSize(&targets[i]))
	}
	return size
}

// copyBelow is the length under which an envelope is copied into a buffer with
// its neighbours: a buffer each would cost more than the copy.
const copyBelow = 8 << 10

// chunkBytes is the length of a buffer of small envelopes. The transport gives
// each buffer back when it has written it, which is how a session knows that a
// slow client takes something.
const chunkBytes = 32 << 10

// maxHead is the most that a tag and a length take.
const maxHead = 1 + 10

// messages writes a Messages frame: long envelopes are shared, short ones copied.
func (w *writing) messages() {
	left := w.frame.Bytes // of the envelopes still to be written
	chunk := w.buffer(chunkOf(left + maxHead))
	buffer := protowire.AppendTag((*chunk)[:0], w.session.fields[delivery.Messages], protowire.BytesType)
	buffer = protowire.AppendVarint(buffer, uint64(left))
	flush := func() {
		if len(buffer) > 0 {
			*chunk = buffer
			w.append(chunk, (*pooled)(w))
		}
	}
	for _, e := range w.frame.Envelopes {
		size := e.FramedSize()
		long := len(e.Encoded) >= copyBelow
		need := size
		if long {
			need -= len(e.Encoded)
		}
		if len(buffer)+need > cap(buffer) {
			flush()
			chunk = w.buffer(chunkOf(left))
			buffer = (*chunk)[:0]
		}
		buffer = protowire.AppendTag(buffer, messagesField, protowire.BytesType)
		buffer = protowire.AppendVarint(buffer, uint64(len(e.Encoded)))
		left -= size
		if !long {
			buffer = append(buffer, e.Encoded...)
			continue
		}
		flush()
		encoded := e.Encoded
		w.append(&encoded, (*shared)(w))
		chunk = w.buffer(chunkOf(left))
		buffer = (*chunk)[:0]
	}
	flush()
}

// chunkOf is the length of a buffer for some of the bytes that are left.
func chunkOf(left int) int { return max(minChunk, min(left, chunkBytes)) }

// minChunk holds the head of a frame or of an envelope.
const minChunk = 64

// pooled and shared own the buffers of a frame: each one that comes back was
// written to the transport, or given up with its stream.
type (
	pooled writing
	shared writing
)

// Get implements mem.BufferPool.
func (p *pooled) Get(length int) *[]byte { return rpc.Buffers().Get(length) }

// Put implements mem.BufferPool.
func (p *pooled) Put(buffer *[]byte) {
	rpc.Buffers().Put(buffer)
	(*writing)(p).wrote()
}

// Get implements mem.BufferPool.
func (p *shared) Get(length int) *[]byte { return rpc.Buffers().Get(length) }

// Put implements mem.BufferPool.
func (p *shared) Put(*[]byte) { (*writing)(p).wrote() }

func (w *writing) wrote() {
	w.session.delivery.Progressed()
	if w.unwritten.Add(-1) == 0 && w.frame.Owed {
		w.session.hub.wrote(w)
	}
}
