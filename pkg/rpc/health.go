package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// healthServer is grpc-go's, except that its watchers end when the server
// drains: every gateway has one open, and the drain would wait for them all.
type healthServer struct {
	*health.Server
	streams context.Context //nolint:containedctx // lives as long as the server
}

// Watch ends with NOT_SERVING and UNAVAILABLE when the drain begins.
func (s healthServer) Watch(request *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.streams, cancel)()
	err := s.Server.Watch(request, watchStream{stream, ctx})
	if s.streams.Err() == nil {
		return err
	}
	if err := stream.Send(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_NOT_SERVING}); err != nil {
		return err
	}
	return errDraining
}

// publicHealth serves health by messages that arrive as all of a client's do.
func publicHealth(server healthServer) Service {
	return Service{Name: healthv1.Health_ServiceDesc.ServiceName, Methods: []Method{
		{Name: "Check", Unary: decoded(server.Check)},
		{Name: "List", Unary: decoded(server.List)},
		{Name: "Watch", Stream: func(stream grpc.ServerStream) error {
			request := &healthv1.HealthCheckRequest{}
			if err := stream.RecvMsg(request); err != nil {
				return err
			}
			return server.Watch(request, &grpc.GenericServerStream[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse]{ServerStream: stream})
		}},
	}}
}

// decoded is a handler of bytes.
func decoded[Request any, PRequest interface {
	*Request
	proto.Message
}, Response proto.Message](answer func(context.Context, PRequest) (Response, error)) func(context.Context, []byte) (*Frame, error) {
	return func(ctx context.Context, encoded []byte) (*Frame, error) {
		request := PRequest(new(Request))
		if err := proto.Unmarshal(encoded, request); err != nil {
			return nil, fault.Invalidf(fault.NoReason, "the request is not a protobuf message")
		}
		response, err := answer(ctx, request)
		if err != nil {
			return nil, err
		}
		answered, err := proto.Marshal(response)
		return FrameOf(answered), err
	}
}

type watchStream struct {
	grpc.ServerStreamingServer[healthv1.HealthCheckResponse]
	ctx context.Context
}

func (s watchStream) Context() context.Context { return s.ctx }
