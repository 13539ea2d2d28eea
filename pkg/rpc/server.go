package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Config bounds a role's server.
type Config struct {
	// DrainTimeout is how long unary calls may go on after a shutdown began.
	DrainTimeout time.Duration `env:"DRAIN_TIMEOUT" envDefault:"10s"`
	// StopTimeout bounds what remains to be done after the drain.
	StopTimeout time.Duration `env:"STOP_TIMEOUT" envDefault:"5s"`
}

// Validate names each variable that is out of range.
func (c Config) Validate() error {
	var errs []error
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("XMTP_DRAIN_TIMEOUT is %v, expected at least 0s", c.DrainTimeout))
	}
	if c.StopTimeout <= 0 {
		errs = append(errs, fmt.Errorf("XMTP_STOP_TIMEOUT is %v, expected more than 0s", c.StopTimeout))
	}
	return errors.Join(errs...)
}

// Method is one RPC of a role. Exactly one of Unary and Stream is set. The
// handlers see raw bytes, and answer with errors that Status understands.
type Method struct {
	Name   string
	Unary  func(ctx context.Context, request []byte) (*Frame, error)
	Stream func(stream grpc.ServerStream) error
	// ClientStreams is for a bidirectional Stream.
	ClientStreams bool
}

// Service is a set of methods under a full service name.
type Service struct {
	Name    string
	Methods []Method
}

// Server serves a role's methods with health and a bounded shutdown.
type Server struct {
	config   Config
	grpc     *grpc.Server
	health   *health.Server
	names    []string
	draining atomic.Bool
	// streams is cancelled when the drain begins: long streams end at once.
	streams    context.Context
	endStreams context.CancelCauseFunc
}

// ServerDeps is what a server needs beside its configuration.
type ServerDeps struct {
	Metrics *telemetry.Metrics
	Logger  *slog.Logger
	// MaxRequestBytes is the longest message accepted on the wire.
	MaxRequestBytes int
	// Options are further server options, such as a stats handler.
	Options []grpc.ServerOption
}

var errDraining = fault.Errorf(fault.Unavailable, "the server is shutting down")

// NewServer prepares a server; nothing listens yet. Health is NOT_SERVING until
// SetServing.
func NewServer(config Config, deps ServerDeps, services ...Service) *Server {
	s := &Server{config: config, health: health.NewServer()}
	s.streams, s.endStreams = context.WithCancelCause(context.Background())
	options := append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec{}),
		grpc.MaxRecvMsgSize(deps.MaxRequestBytes),
		grpc.MaxSendMsgSize(1 << 30), // a role's own response check comes first
		grpc.ChainStreamInterceptor(Chain(deps.Logger, deps.Metrics)...),
		grpc.WaitForHandlers(true),
	}, deps.Options...)
	s.grpc = grpc.NewServer(options...)
	s.names = []string{""}
	for _, service := range services {
		s.register(service)
		s.names = append(s.names, service.Name)
	}
	healthv1.RegisterHealthServer(s.grpc, s.health)
	s.SetServing(false)
	return s
}

// register describes the service to grpc-go. Unary methods are streams there,
// too: only a stream handler sees the error of a message that is too long.
func (s *Server) register(service Service) {
	desc := grpc.ServiceDesc{ServiceName: service.Name, HandlerType: (*any)(nil)}
	for _, method := range service.Methods {
		handler := s.unary(method.Unary)
		if method.Stream != nil {
			handler = s.stream(method.Stream)
		}
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName:    method.Name,
			Handler:       handler,
			ServerStreams: method.Stream != nil,
			ClientStreams: method.ClientStreams,
		})
	}
	s.grpc.RegisterService(&desc, nil)
}

func (s *Server) unary(handle func(context.Context, []byte) (*Frame, error)) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		if s.draining.Load() {
			return errDraining
		}
		var request Frame
		if err := stream.RecvMsg(&request); err != nil {
			return ReceiveError(err)
		}
		response, err := handle(stream.Context(), request.Take())
		if err != nil {
			return err
		}
		return stream.SendMsg(response)
	}
}

func (s *Server) stream(handle func(grpc.ServerStream) error) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		if s.draining.Load() {
			return errDraining
		}
		ctx, cancel := context.WithCancelCause(stream.Context())
		defer cancel(nil)
		defer context.AfterFunc(s.streams, func() { cancel(context.Cause(s.streams)) })()
		err := handle(&contextStream{ServerStream: stream, ctx: ctx})
		if cause := context.Cause(ctx); errors.Is(cause, errDraining) {
			return errDraining
		}
		return err
	}
}

// contextStream is a stream whose context also ends when the server drains.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *contextStream) Context() context.Context { return s.ctx }

// ReceiveError turns grpc-go's refusal of a long message into the specified
// one: OUT_OF_RANGE for the length on the wire, RESOURCE_EXHAUSTED for what a
// compressed message inflates to (contract notes). Other errors pass.
func ReceiveError(err error) error {
	text := Status(err).Message()
	switch {
	case strings.Contains(text, "received message larger than max"):
		return fault.Wrap(fault.TooLong, err, "the message is longer than the server's limit for a request")
	case strings.Contains(text, "message after decompression larger than max"):
		return fault.Wrap(fault.Exhausted, err, "the message is longer after decompression than the server's limit for a request")
	}
	return err
}

// SetServing sets the health of every service of this role.
func (s *Server) SetServing(serving bool) {
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if serving && !s.draining.Load() {
		state = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range s.names {
		s.health.SetServingStatus(name, state)
	}
}

// Serve accepts calls until ctx ends, then drains: health NOT_SERVING, new
// calls and open streams UNAVAILABLE at once, unary calls within DrainTimeout.
// It returns when no handler runs any more, at most StopTimeout later.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	s.drain()
	return <-served
}

func (s *Server) drain() {
	s.draining.Store(true)
	s.health.Shutdown()
	s.endStreams(errDraining)
	drained := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(s.config.DrainTimeout):
		s.grpc.Stop()
		<-drained
	}
}
