package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
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

type watchStream struct {
	grpc.ServerStreamingServer[healthv1.HealthCheckResponse]
	ctx context.Context
}

func (s watchStream) Context() context.Context { return s.ctx }
