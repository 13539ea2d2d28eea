package stream

import (
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

// encode writes a frame as the response message of its stream.
func (s *session) encode(f *delivery.Frame) *rpc.Frame {
	number := s.fields[f.Kind]
	if f.Kind == delivery.Messages {
		return &rpc.Frame{Data: s.assemble(number, f.Envelopes, f.Bytes)}
	}
	var body []byte
	switch f.Kind {
	case delivery.Started:
		body = appendVarint(body, startedInterval, uint64(s.hub.limits.KeepaliveInterval.Milliseconds()))
		body = appendTargets(body, startedTargets, f.Targets)
	case delivery.Applied:
		body = appendVarint(body, appliedID, f.ID)
		body = appendTargets(body, appliedTargets, f.Targets)
	case delivery.Ping, delivery.Pong:
		body = appendVarint(body, onlyField, f.Nonce)
	}
	message := protowire.AppendTag(make([]byte, 0, len(body)+8), number, protowire.BytesType)
	return rpc.FrameOf(protowire.AppendBytes(message, body))
}

func appendVarint(dst []byte, number protowire.Number, value uint64) []byte {
	if value == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, number, protowire.VarintType), value)
}

func appendTargets(dst []byte, number protowire.Number, targets []delivery.Target) []byte {
	for _, t := range targets {
		size := 1 + protowire.SizeBytes(envelope.TopicSize(t.Topic))
		if t.Through > 0 {
			size += 1 + protowire.SizeVarint(uint64(t.Through))
		}
		dst = protowire.AppendTag(dst, number, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(size))
		dst = envelope.AppendTopicField(dst, targetTopic, t.Topic)
		dst = appendVarint(dst, targetThrough, uint64(t.Through))
	}
	return dst
}

// copyBelow is the length under which an envelope is copied into a buffer with
// its neighbours: a buffer each would cost more than the copy.
const copyBelow = 8 << 10

// chunkBytes is the length of a buffer of small envelopes. The transport gives
// each buffer back when it has written it, which is how a session knows that a
// slow client takes something.
const chunkBytes = 32 << 10

// assemble writes a Messages frame: long envelopes are shared, short ones
// copied.
func (s *session) assemble(number protowire.Number, envelopes []*delivery.Envelope, bytes int) mem.BufferSlice {
	var frame mem.BufferSlice
	left := bytes // of the envelopes still to be written
	chunk := s.chunk(protowire.SizeTag(number) + protowire.SizeBytes(bytes))
	buffer := (*chunk)[:0]
	buffer = protowire.AppendTag(buffer, number, protowire.BytesType)
	buffer = protowire.AppendVarint(buffer, uint64(bytes))
	flush := func() {
		if len(buffer) == 0 {
			return
		}
		*chunk = buffer
		frame = append(frame, mem.NewBuffer(chunk, (*pooled)(s)))
	}
	for _, e := range envelopes {
		size := e.FramedSize()
		long := len(e.Encoded) >= copyBelow
		need := size
		if long {
			need -= len(e.Encoded)
		}
		if len(buffer)+need > cap(buffer) {
			flush()
			chunk = s.chunk(left)
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
		frame = append(frame, mem.NewBuffer(&encoded, (*shared)(s)))
		chunk = s.chunk(min(left, chunkBytes))
		buffer = (*chunk)[:0]
	}
	flush()
	return frame
}

// chunk returns a buffer for some of the bytes that are left.
func (s *session) chunk(left int) *[]byte {
	return rpc.Buffers().Get(max(minChunk, min(left, chunkBytes)))
}

// minChunk holds the head of a frame or of an envelope.
const minChunk = 64

// pooled and shared are a session as the owner of the buffers of its frames:
// each one that comes back was written to the transport.
type (
	pooled session
	shared session
)

// Get implements mem.BufferPool.
func (p *pooled) Get(length int) *[]byte { return rpc.Buffers().Get(length) }

// Put implements mem.BufferPool.
func (p *pooled) Put(buffer *[]byte) {
	p.delivery.Progressed()
	rpc.Buffers().Put(buffer)
}

// Get implements mem.BufferPool.
func (p *shared) Get(length int) *[]byte { return rpc.Buffers().Get(length) }

// Put implements mem.BufferPool.
func (p *shared) Put(*[]byte) { p.delivery.Progressed() }
