package rpc

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Chain is the interceptors of every role's server, outermost first.
func Chain(logger *slog.Logger, metrics *telemetry.Metrics) []grpc.StreamServerInterceptor {
	observer := NewObserver(logger, metrics)
	observer.internal = true
	return append([]grpc.StreamServerInterceptor{
		observer.intercept, // sees the final status of every call
		pushback,           // tells the gateway whether to repeat
	}, inner(logger)...)
}

// publicChain is Chain for the server that meets clients: it tells nobody to
// repeat, and guards what it receives.
func publicChain(deps ServerDeps) []grpc.StreamServerInterceptor {
	chain := []grpc.StreamServerInterceptor{NewObserver(deps.Logger, deps.Metrics).intercept, deps.Public.cancelled}
	chain = append(chain, inner(deps.Logger)...)
	return append(chain, deps.Public.Arrival.intercept(deps.MaxRequestBytes))
}

func inner(logger *slog.Logger) []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		statuses, // turns faults into statuses
		recovery.StreamServerInterceptor( // innermost, so that a panic is a fault like any other
			recovery.WithRecoveryHandler(func(p any) error { return Recovered(logger, p) })),
	}
}

// Recovered logs a panic of a handler and returns the fault that its caller
// gets. Only the runtime's own panics are logged by their text: any other value
// may hold what a client sent.
func Recovered(logger *slog.Logger, p any) error {
	text := fmt.Sprintf("a %T", p)
	if known, ok := p.(runtime.Error); ok {
		text = known.Error()
	}
	logger.Error("a handler panicked", "panic", text, "stack", string(debug.Stack()))
	return fault.Errorf(fault.Broken, "internal error")
}

// Pushback is the trailer by which a role tells the gateway what an UNAVAILABLE
// of its own means. The gateway never forwards it.
const Pushback = "grpc-retry-pushback-ms"

// The values of Pushback.
const (
	// PushbackNever marks a dependency that is away: another instance of the
	// role would answer the same.
	PushbackNever = "-1"
	// PushbackNow marks an instance that shuts down: another can do the work.
	PushbackNow = "0"
)

// Cause is the trailer by which a role tells the gateway that a call, whatever its
// code, failed by what its caller asked for. The gateway never forwards it.
const Cause = "xmtp-cause"

// CauseCaller is the one value of Cause.
const CauseCaller = "caller"

// pushback marks what the gateway cannot tell from a status.
func pushback(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	err := handle(server, stream)
	if err == nil || Status(err).Code() != codes.Unavailable {
		return err
	}
	value := PushbackNever
	if errors.Is(err, errDraining) {
		value = PushbackNow
	}
	trailer := metadata.Pairs(Pushback, value)
	if isCallers(err) {
		trailer.Set(Cause, CauseCaller)
	}
	stream.SetTrailer(trailer)
	return err
}

// OfCaller marks the error of a role, whose trailer said so, as brought about by
// its caller; its status stays.
func OfCaller(err error) error { return &callersError{err} }

type callersError struct{ error }

// GRPCStatus is that of the role.
func (e *callersError) GRPCStatus() *status.Status { return Status(e.error) }

func (e *callersError) Unwrap() error { return e.error }

func isCallers(err error) bool {
	var passed *callersError
	var failure *fault.Error
	return errors.As(err, &passed) || errors.As(err, &failure) && failure.ByCaller
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
