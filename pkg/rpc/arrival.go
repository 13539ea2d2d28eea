package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// Arrival is how the messages of clients, who may be anybody, arrive at a server.
// grpc-go's own RecvMsg tells nothing before a message is complete, waits for it for
// ever, and puts a status of its own on the wire when it is too long. So the
// messages are read here, piece by piece, from grpc-go's stream below.
type Arrival struct {
	// Timeout is how long a message may take to arrive: the one message of a call
	// from its headers on, others from their first byte on.
	Timeout time.Duration
	// Patience is how long a message waits for room. Then it gives back what it has:
	// others that wait may need just that.
	Patience time.Duration
	// Holder is what the caller holds of the budget of messages.
	Holder func(ctx context.Context) *budget.Holder
}

const (
	// smallMessage is how long a message is that is counted as a whole, when it is
	// complete. Of a longer one so much has to be there before more is counted.
	smallMessage = 64 << 10
	// roomStep is how much a long message takes from the budget at a time. It is
	// more than the budget takes for a small amount.
	roomStep = 128 << 10
	// pieceBytes is how much is read at a time.
	pieceBytes = 16 << 10
)

// messageStream is what is used of grpc-go's stream below grpc.ServerStream.
type messageStream interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
	RecvCompress() string
	WriteStatus(status *status.Status) error
}

// intercept lets a call receive its messages so. It is the innermost interceptor.
func (a *Arrival) intercept(limit int) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		return handle(server, &arrivalStream{ServerStream: stream, arrival: a, limit: limit, only: !info.IsClientStream})
	}
}

// arrivalStream is a stream whose messages are read here.
type arrivalStream struct {
	grpc.ServerStream

	arrival *Arrival
	limit   int
	only    bool // the client sends one message
}

func (s *arrivalStream) RecvMsg(m any) error {
	if frame, ok := m.(*Frame); ok {
		return s.arrival.receive(s.ServerStream, frame, s.limit, s.only)
	}
	var frame Frame
	if err := s.arrival.receive(s.ServerStream, &frame, s.limit, s.only); err != nil {
		return err
	}
	message, ok := m.(proto.Message)
	if !ok || proto.Unmarshal(frame.Take(), message) != nil {
		return fault.Invalidf(fault.NoReason, "the request is not a protobuf message")
	}
	return nil
}

// arriving is one message on its way in.
type arriving struct {
	*Arrival

	ctx    context.Context //nolint:containedctx // lives as long as the read
	stream messageStream
	limit  int
	timer  *time.Timer
}

// receive reads the only message of a call up to its end, or the next of a stream.
// Its error is io.EOF after the last one.
func (a *Arrival) receive(stream grpc.ServerStream, frame *Frame, limit int, only bool) error {
	ctx := stream.Context()
	below, ok := grpc.ServerTransportStreamFromContext(ctx).(messageStream)
	if !ok {
		return fault.Errorf(fault.Broken, "this version of grpc-go has no stream of bytes")
	}
	m := arriving{Arrival: a, ctx: ctx, stream: below, limit: limit}
	if only {
		m.timer = time.AfterFunc(a.Timeout, m.expire)
		return m.inTime(frame, m.whole(frame))
	}
	var first [1]byte
	if err := below.ReadMessageHeader(first[:]); err != nil {
		return err
	}
	m.timer = time.AfterFunc(a.Timeout, m.expire)
	return m.inTime(frame, m.rest(frame, first[0]))
}

// expire ends the call by its status, and with it the read that waits.
func (m *arriving) expire() { _ = m.stream.WriteStatus(Status(m.late())) }

func (m *arriving) late() error {
	return fault.Errorf(fault.Late, "the request did not arrive within %v, expected all of it", m.Timeout)
}

// inTime makes the result of the read that of the arrival: of a message that is late,
// or that could not be read, nothing stays.
func (m *arriving) inTime(frame *Frame, err error) error {
	if !m.timer.Stop() {
		err = m.late()
	}
	if err != nil {
		frame.Free()
	}
	return err
}

// whole reads a message, and that nothing follows it.
func (m *arriving) whole(frame *Frame) error {
	var first [1]byte
	err := m.stream.ReadMessageHeader(first[:])
	if errors.Is(err, io.EOF) {
		return fault.Invalidf(fault.NoReason, "the call carried no request message, expected one")
	}
	if err == nil {
		err = m.rest(frame, first[0])
	}
	if err != nil {
		return err
	}
	err = m.stream.ReadMessageHeader(first[:])
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = fault.Invalidf(fault.NoReason, "the call carried more than one request message, expected one")
	}
	return err
}

// rest reads a message behind the first byte of its prefix.
func (m *arriving) rest(frame *Frame, compressed byte) error {
	var prefix [4]byte
	if err := m.stream.ReadMessageHeader(prefix[:]); err != nil {
		return cut(err)
	}
	length := int(uint32(prefix[0])<<24 | uint32(prefix[1])<<16 | uint32(prefix[2])<<8 | uint32(prefix[3]))
	if length > m.limit {
		return TooLong(length, m.limit)
	}
	room := &room{holder: m.Holder(m.ctx), patience: m.Patience}
	data, err := m.read(length, room)
	if err == nil && compressed == 1 {
		data, room, err = m.inflate(data, room)
	} else if err == nil && compressed > 1 {
		err = fault.Invalidf(fault.NoReason, "the message begins with the byte %d, expected 0 or 1", compressed)
	}
	if err == nil {
		err = room.settle(m.ctx)
	}
	frame.Data, frame.held = data, room
	return err
}

// cut is the error of a message whose stream ended before it.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.Invalidf(fault.NoReason, "the request ended within a message")
	}
	return err
}

// read reads bytes for which the room grows with what is there.
func (m *arriving) read(length int, room *room) (data mem.BufferSlice, err error) {
	for length > 0 && err == nil {
		piece := min(length, pieceBytes)
		if err = room.grow(m.ctx, piece); err != nil {
			break
		}
		var part mem.BufferSlice
		if part, err = m.stream.Read(piece); err == nil {
			data = append(data, compact(part, piece)...)
			length -= piece
		}
	}
	return data, cut(err)
}

// compact is for frames of a few bytes: each costs some fifty bytes beside them.
func compact(parts mem.BufferSlice, bytes int) mem.BufferSlice {
	if len(parts) <= 1+bytes>>10 {
		return parts
	}
	whole := parts.MaterializeToBuffer(&used)
	parts.Free()
	return mem.BufferSlice{whole}
}

// inflate replaces a compressed message and its room.
func (m *arriving) inflate(from mem.BufferSlice, small *room) (data mem.BufferSlice, large *room, err error) {
	defer small.release()
	defer from.Free()
	large = &room{holder: small.holder, patience: small.patience}
	source := from.Reader()
	defer func() { _ = source.Close() }() // never fails
	inflated, err := decompress(m.stream.RecvCompress(), source)
	if err == nil {
		data, err = m.drain(inflated, large, m.inflatedTooFar)
	}
	return data, large, badlyCompressed(err)
}

// room is what a message holds of the budget.
type room struct {
	holder       *budget.Holder
	patience     time.Duration
	bytes, taken int64
}

// grow makes room for bytes that are going to be read.
func (r *room) grow(ctx context.Context, bytes int) error {
	r.bytes += int64(bytes)
	for r.bytes > smallMessage+r.taken {
		if err := r.take(ctx, roomStep); err != nil {
			return err
		}
		r.taken += roomStep
	}
	return nil
}

// settle counts a small message, which is complete.
func (r *room) settle(ctx context.Context) error {
	if r.taken > 0 || r.bytes == 0 {
		return nil
	}
	if err := r.take(ctx, r.bytes); err != nil {
		return err
	}
	r.taken = r.bytes
	return nil
}

func (r *room) take(ctx context.Context, bytes int64) error {
	if r.holder.TryTake(bytes) {
		return nil
	}
	patient, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	err := r.holder.Take(patient, bytes)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "the gateway has no memory left for the request; try again later")
	}
	return nil
}

// release gives back what was taken, as it was taken.
func (r *room) release() {
	if r.taken <= smallMessage {
		if r.taken > 0 {
			r.holder.Give(r.taken)
		}
		r.taken = 0
	}
	for ; r.taken > 0; r.taken -= roomStep {
		r.holder.Give(roomStep)
	}
}
