package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// Body is the body of a request that did not come by grpc-go, whose messages arrive
// as those of an Arrival do: what is there of them is counted before more is read. It
// leaves the time limit to its owner, who knows how to end a read. One goroutine at a
// time may use it.
type Body struct {
	Arrival *Arrival
	// Source is read no further than the end of the message that is asked for.
	Source io.Reader
	// Compression is the name of what messages are compressed with, or empty.
	Compression string
	// Limit is the longest message, compressed or not, in bytes.
	Limit int
}

// Begin waits for the first byte of a message behind a prefix, for Rest. Its error is
// io.EOF after the last one.
func (b *Body) Begin() (compressed byte, err error) {
	var first [1]byte
	_, err = io.ReadFull(b.Source, first[:])
	return first[0], err
}

// Rest reads the message that began with that byte.
func (b *Body) Rest(ctx context.Context, frame *Frame, compressed byte) error {
	m := arriving{Arrival: b.Arrival, ctx: ctx, stream: bodyStream{b}, limit: b.Limit}
	err := m.rest(frame, compressed)
	if err != nil {
		frame.Free()
	}
	return err
}

// Whole reads a message without a prefix, which ends with the body.
func (b *Body) Whole(ctx context.Context, frame *Frame) error {
	m := arriving{Arrival: b.Arrival, ctx: ctx, limit: b.Limit}
	source := io.Reader(&limitedReader{source: b.Source, limit: b.Limit})
	tooLong := func(length int) error { return TooLong(length, b.Limit) }
	if b.Compression != "" {
		inflated, err := decompress(b.Compression, source)
		if err != nil {
			return err
		}
		source, tooLong = inflated, m.inflatedTooFar
	}
	room := &room{holder: m.Holder(ctx), patience: m.Patience}
	data, err := m.drain(source, room, tooLong)
	if b.Compression != "" {
		err = badlyCompressed(err)
	}
	if err == nil {
		err = room.settle(ctx)
	}
	frame.Data, frame.held = data, room
	if err != nil {
		frame.Free()
	}
	return err
}

// Room takes bytes from the budget for what a message is going to cost beside itself,
// and returns the function that gives them back.
func (a *Arrival) Room(ctx context.Context, bytes int64) (release func(), err error) {
	holder := a.Holder(ctx)
	room := &room{holder: holder, patience: a.Patience}
	if err := room.take(ctx, bytes); err != nil {
		return nil, err
	}
	return func() { holder.Give(bytes) }, nil
}

// bodyStream is a body as a stream of grpc-go.
type bodyStream struct{ *Body }

func (s bodyStream) ReadMessageHeader(header []byte) error {
	_, err := io.ReadFull(s.Source, header)
	return err
}

func (s bodyStream) Read(n int) (mem.BufferSlice, error) {
	buffer := used.Get(n)
	if _, err := io.ReadFull(s.Source, *buffer); err != nil {
		used.Put(buffer)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(buffer, &used)}, nil
}

func (s bodyStream) RecvCompress() string { return s.Compression }

// WriteStatus is for time limits, which are the owner's.
func (s bodyStream) WriteStatus(*status.Status) error { return nil }

// limitedReader refuses what is longer than the limit.
type limitedReader struct {
	source      io.Reader
	limit, seen int
}

func (r *limitedReader) Read(p []byte) (int, error) {
	n, err := r.source.Read(p)
	if r.seen += n; r.seen > r.limit {
		return 0, TooLong(r.seen, r.limit)
	}
	return n, err
}

func decompress(name string, source io.Reader) (io.Reader, error) {
	compressor := encoding.GetCompressor(name)
	if compressor == nil {
		return nil, fault.Errorf(fault.Unimplemented, "the message is compressed in a way that the server does not know, expected gzip")
	}
	inflated, err := compressor.Decompress(source)
	return inflated, badlyCompressed(err)
}

// badlyCompressed is the error of a message that cannot be inflated, unless it has
// one of its own: of its room, its length or the time that it took.
func badlyCompressed(err error) error {
	if err == nil || fault.KindOf(err) != fault.Broken {
		return err
	}
	return fault.Wrap(fault.Invalid, err, "the message cannot be decompressed")
}

func (m *arriving) inflatedTooFar(int) error {
	return fault.Errorf(fault.Exhausted, "the request is longer than %d bytes after decompression, expected at most as many", m.limit)
}

// drain reads to the end, for which the room grows with what is there.
func (m *arriving) drain(source io.Reader, room *room, tooLong func(length int) error) (data mem.BufferSlice, err error) {
	for length := 0; err == nil; {
		if err := room.grow(m.ctx, pieceBytes); err != nil {
			return data, err
		}
		buffer := used.Get(pieceBytes)
		var n int
		n, err = fill(source, *buffer)
		*buffer = (*buffer)[:n]
		data = append(data, mem.NewBuffer(buffer, &used))
		if length += n; length > m.limit {
			return data, tooLong(length)
		}
	}
	if errors.Is(err, io.EOF) {
		return data, nil
	}
	return data, err
}

// fill is io.ReadFull that passes on how the source ended: a source that is cut off is
// no source that ends.
func fill(source io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var read int
		read, err = source.Read(p[n:])
		n += read
	}
	return n, err
}
