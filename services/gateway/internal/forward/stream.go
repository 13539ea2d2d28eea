package forward

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
)

// Client is the client's side of a stream, in whatever protocol.
type Client interface {
	// Recv returns io.EOF after the client's last message.
	Recv() (*rpc.Frame, error)
	// Send takes the frame.
	Send(frame *rpc.Frame) error
}

// Stream carries a streaming method until it ends, and returns its status. Until
// the role's first frame it is held and repeated like a unary call; after that
// the loss of the instance ends it with UNAVAILABLE.
//
// A client that streams, too, is read only after that frame: every role sends
// Started before it reads anything (API-090).
func (r *Role) Stream(ctx context.Context, method string, clientStreams bool, client Client) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &roleStream{role: r, client: r.budgets.From(ctx), method: method, desc: &grpc.StreamDesc{ServerStreams: true, ClientStreams: clientStreams}}
	if !clientStreams {
		request, err := client.Recv()
		if err != nil {
			return received(err)
		}
		s.request = request
	}
	first, err := s.openAside(ctx)
	if s.request != nil {
		s.request.Free() // it is not sent again, and the stream may last for days
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	if clientStreams {
		// Ends with the client's stream, which ends when this call returns.
		go s.sendAll(client, cancel)
	}
	return s.deliver(ctx, first, client)
}

func received(err error) error {
	if errors.Is(err, io.EOF) {
		return fault.Invalidf(fault.NoReason, "the call carried no request message, expected one")
	}
	return err
}

type roleStream struct {
	role    *Role
	client  *caller.Caller
	method  string
	desc    *grpc.StreamDesc
	request *rpc.Frame // of a client that sends one message
	stream  grpc.ClientStream
}

func (s *roleStream) openAside(ctx context.Context) (first *rpc.Frame, err error) {
	rpc.Aside(func() { first, err = s.open(ctx) })
	return first, err
}

// open returns the role's first frame; io.EOF when the stream ended well
// without one.
func (s *roleStream) open(ctx context.Context) (*rpc.Frame, error) {
	h := hold{role: s.role}
	defer h.release()
	if s.request != nil {
		if err := h.room(ctx, s.client, s.request); err != nil {
			return nil, err
		}
	}
	for {
		if err := h.ready(ctx); err != nil {
			return nil, err
		}
		first, err := s.attempt(ctx)
		if err == nil || errors.Is(err, io.EOF) {
			return first, err
		}
		var trailer metadata.MD
		if s.stream != nil {
			trailer = s.stream.Trailer()
		}
		if final := s.role.judge(err, trailer); final != nil {
			return nil, final
		}
		s.role.metrics.GatewayRepeatedCalls.Add(ctx, 1)
		if !h.pause(ctx) {
			return nil, s.role.away(ctx, err)
		}
	}
}

func (s *roleStream) attempt(ctx context.Context) (*rpc.Frame, error) {
	stream, err := s.role.conn.NewStream(ctx, s.desc, s.method)
	s.stream = stream
	if err != nil {
		s.stream = nil
		return nil, err
	}
	if s.request != nil {
		// An error here is io.EOF: the status comes with the first receive.
		if err := stream.SendMsg(rpc.Shared{Frame: s.request}); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		_ = stream.CloseSend()
	}
	first := &rpc.Frame{}
	return first, stream.RecvMsg(first)
}

// sendAll carries the client's messages until it has no more, or is gone, or sends
// one that is refused: that error is the stream's.
func (s *roleStream) sendAll(client Client, cancel context.CancelCauseFunc) {
	for {
		frame, err := client.Recv()
		if errors.Is(err, io.EOF) {
			_ = s.stream.CloseSend()
			return
		}
		if err != nil {
			cancel(err)
			return
		}
		err = s.stream.SendMsg(frame)
		frame.Release()
		if err != nil {
			return // the status is for the receiving side
		}
	}
}

// deliver carries the role's frames until the stream ends.
func (s *roleStream) deliver(ctx context.Context, frame *rpc.Frame, client Client) error {
	for {
		if err := s.send(ctx, frame, client); err != nil {
			return err
		}
		frame = &rpc.Frame{}
		err := s.stream.RecvMsg(frame)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return s.lost(ctx, err)
		}
	}
}

// send waits for room for a frame, as long as a call waits for an instance.
func (s *roleStream) send(ctx context.Context, frame *rpc.Frame, client Client) error {
	h := hold{role: s.role}
	defer h.release()
	room, err := h.owe(ctx, s.client, frame.Data.Len())
	if err != nil {
		frame.Free()
		return err
	}
	room.Attach(frame)
	return client.Send(frame)
}

// lost is the error of a stream that ended after its first frame.
func (s *roleStream) lost(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if status.Code(err) == codes.Unavailable && len(s.stream.Trailer().Get(rpc.Pushback)) == 0 {
		return fault.Wrap(fault.Unavailable, err, "the instance of the %s is gone; open the stream again", s.role.name)
	}
	if final := s.role.judge(err, s.stream.Trailer()); final != nil {
		return final
	}
	return err
}
