package rpc

import (
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// healthService is called every few seconds by every probe and balancer.
const healthService = "/grpc.health.v1.Health/"

// Chain is the interceptors of every server, outermost first.
func Chain(logger *slog.Logger, metrics *telemetry.Metrics) []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		observe(logger, metrics), // sees the final status of every call
		statuses,                 // turns faults into statuses
		recovery.StreamServerInterceptor( // innermost, so that a panic is a fault like any other
			recovery.WithRecoveryHandler(func(p any) error {
				logger.Error("a handler panicked", "panic", p, "stack", string(debug.Stack()))
				return fault.Errorf(fault.Broken, "internal error")
			})),
	}
}

func statuses(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	err := handle(server, stream)
	if err == nil {
		return nil
	}
	return &statusError{cause: err}
}

// statusError shows its status to grpc-go and its cause to the log.
type statusError struct{ cause error }

func (e *statusError) Error() string { return e.cause.Error() }
func (e *statusError) Unwrap() error { return e.cause }

// GRPCStatus is what the client reads.
func (e *statusError) GRPCStatus() *status.Status { return Status(e.cause) }

// observe counts and times every call, and writes one line for each that failed
// on our side. Health calls are counted but not logged.
func observe(logger *slog.Logger, metrics *telemetry.Metrics) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		ctx := stream.Context()
		service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
		call := metric.WithAttributeSet(attribute.NewSet(
			attribute.String("grpc_service", service), attribute.String("grpc_method", method), attribute.String("grpc_type", typeOf(info))))
		metrics.RPCStarted.Add(ctx, 1, call)
		metrics.RPCInFlight.Add(ctx, 1, call)
		begun := time.Now()
		err := handle(server, stream)
		took := time.Since(begun)
		metrics.RPCInFlight.Add(ctx, -1, call)
		metrics.RPCDuration.Record(ctx, took.Seconds(), call)
		code := codes.OK
		if err != nil {
			code = Status(err).Code()
		}
		metrics.RPCHandled.Add(ctx, 1, call, metric.WithAttributes(attribute.String("grpc_code", code.String())))
		if !strings.HasPrefix(info.FullMethod, healthService) {
			logger.LogAttrs(ctx, levelOf(code), "call", slog.String("method", info.FullMethod),
				slog.String("code", code.String()), slog.Duration("took", took), slog.Any("cause", causeOf(err, code)))
		}
		return err
	}
}

func typeOf(info *grpc.StreamServerInfo) string {
	switch {
	case info.IsClientStream && info.IsServerStream:
		return "bidi_stream"
	case info.IsServerStream:
		return "server_stream"
	case info.IsClientStream:
		return "client_stream"
	default:
		return "unary"
	}
}

// levelOf keeps what a client did wrong at debug level: it is the client's to
// read, and its text may quote the client's input.
func levelOf(code codes.Code) slog.Level {
	switch code {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return slog.LevelError
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return slog.LevelWarn
	default:
		return slog.LevelDebug
	}
}

// causeOf is what a log may show of an error: nothing of what a client sent.
func causeOf(err error, code codes.Code) any {
	if err == nil || levelOf(code) == slog.LevelDebug {
		return nil
	}
	return err.Error()
}
