// Package rpc is the gRPC side that all roles share: servers and connections,
// the order of the interceptors, and the one place where a fault becomes a
// status.
package rpc

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Frame is one message as raw bytes. Roles receive frames and decode them in
// their handlers, since grpc-go would answer an undecodable message with
// INTERNAL; the gateway forwards them without decoding.
type Frame struct {
	Data mem.BufferSlice
	held releaser
	owed *owed // of an Answer
}

// releaser is what a message holds beside its bytes, such as a part of a budget.
type releaser interface{ release() }

type releaseFunc func()

func (f releaseFunc) release() { f() }

// Hold lets release run, once, when the frame is taken or freed, or by Release.
func (f *Frame) Hold(release func()) { f.held = releaseFunc(release) }

// IsHeld reports whether something is released with the frame.
func (f *Frame) IsHeld() bool { return f.held != nil }

// Release is for a frame whose bytes are not its owner's any more, as after sending.
func (f *Frame) Release() {
	if f.held != nil {
		f.held.release()
		f.held = nil
	}
}

// FrameOf wraps encoded bytes, which must not change afterwards.
func FrameOf(encoded []byte) *Frame {
	return &Frame{Data: mem.BufferSlice{mem.SliceBuffer(encoded)}}
}

// Take returns the bytes of a received frame and releases it.
func (f *Frame) Take() []byte {
	taken := f.takeBytes()
	f.Release()
	return taken
}

func (f *Frame) takeBytes() []byte {
	taken := f.Data.Materialize()
	f.Data.Free()
	f.Data = nil
	return taken
}

// Free releases a frame that is neither taken nor sent.
func (f *Frame) Free() {
	f.Data.Free()
	f.Data = nil
	f.Release()
}

// Shared is a frame that can be sent more than once: sending does not give it
// away, so its owner frees it in the end.
type Shared struct{ Frame *Frame }

// Codec passes frames through and marshals anything else as protobuf (health,
// reflection). It goes by the name "proto", so peers see an ordinary service.
type Codec struct{}

// Name is the content subtype.
func (Codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch message := v.(type) {
	case *Frame:
		return message.Data, nil
	case Shared:
		message.Frame.Data.Ref()
		return message.Frame.Data, nil
	case proto.Message:
		encoded, err := proto.Marshal(message)
		return mem.BufferSlice{mem.SliceBuffer(encoded)}, err
	default:
		return nil, fmt.Errorf("cannot send a %T: neither a frame nor a protobuf message", v)
	}
}

// Unmarshal implements encoding.CodecV2. A frame keeps a reference to data until
// it is taken or sent.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch message := v.(type) {
	case *Frame:
		data.Ref()
		message.Data = data
		return nil
	case proto.Message:
		return proto.Unmarshal(data.Materialize(), message)
	default:
		return fmt.Errorf("cannot receive into a %T: neither a frame nor a protobuf message", v)
	}
}
