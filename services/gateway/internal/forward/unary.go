package forward

import (
	"context"
	"errors"
	"io"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
)

// unaryCall is one unary call, on one instance after the other.
type unaryCall struct {
	role    *Role
	method  string
	request *rpc.Frame
	client  *caller.Caller
	hold    hold
	trailer metadata.MD // of the last attempt that failed
}

var unaryDesc grpc.StreamDesc // no stream on either side

// attempt asks one instance. A long answer is received only when there is room for
// it: until then the window of its stream holds it up. One that is not received goes
// with the context, which ends with the call.
func (u *unaryCall) attempt(ctx context.Context) (*rpc.Frame, error) {
	u.trailer = nil
	stream, err := u.role.conn.NewStream(ctx, &unaryDesc, u.method)
	if err != nil {
		return nil, err
	}
	// An error here is io.EOF: the status comes with the answer.
	if err := stream.SendMsg(rpc.Shared{Frame: u.request}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	header, err := stream.Header()
	if err != nil {
		u.trailer = stream.Trailer()
		return nil, err
	}
	response := &rpc.Frame{}
	if length := announced(header); length > 0 {
		return u.long(ctx, stream, length)
	}
	if err := stream.RecvMsg(response); err != nil {
		u.trailer = stream.Trailer()
		return nil, err
	}
	room, err := u.hold.owe(ctx, u.client, response.Data.Len())
	if err != nil {
		response.Free()
		return nil, err
	}
	room.Attach(response)
	return response, nil
}

// long receives an answer that was announced.
func (u *unaryCall) long(ctx context.Context, stream grpc.ClientStream, length int) (*rpc.Frame, error) {
	room, err := u.hold.owe(ctx, u.client, length)
	if err != nil {
		return nil, err
	}
	response := &rpc.Frame{}
	if err := stream.RecvMsg(response); err != nil {
		room.Drop()
		u.trailer = stream.Trailer()
		return nil, err
	}
	room.Attach(response)
	return response, nil
}

// announced is how long the answer is going to be; 0 when that was not said.
func announced(header metadata.MD) int {
	said := header.Get(rpc.AnswerBytes)
	if len(said) == 0 {
		return 0
	}
	length, _ := strconv.Atoi(said[0])
	return max(length, 0)
}
