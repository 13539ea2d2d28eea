package rpc

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// healthService is called every few seconds by every probe and balancer.
const healthService = "/grpc.health.v1.Health/"

// UnknownMethod is the name under which calls of methods that do not exist are
// counted: the name that the caller chose would be a label of its own each time.
const UnknownMethod = "/unknown/unknown"

// Observer counts and times calls, and writes one line for each that failed on
// our side. It is safe for concurrent use.
type Observer struct {
	logger  *slog.Logger
	metrics *telemetry.Metrics
	// methods keeps the attributes of each method: building them anew costs
	// more than the rest of a cheap call.
	methods sync.Map
	// internal says that callers are parts of the backend: their traces go on
	// here. A client's trace does not, it would decide what is exported.
	internal bool
}

// NewObserver makes an observer of the process's calls.
func NewObserver(logger *slog.Logger, metrics *telemetry.Metrics) *Observer {
	return &Observer{logger: logger, metrics: metrics}
}

type methodKey struct{ name, kind string }

// measured is the attributes of one method, and of its calls that ended well.
type measured struct{ call, ok metric.MeasurementOption }

// Begin counts the start of a call of a method that exists (or UnknownMethod),
// whose kind is unary, server_stream, client_stream or bidi_stream. The call goes
// on with the returned context, and the caller runs the returned function once,
// with the result.
func (o *Observer) Begin(ctx context.Context, fullMethod, kind string) (context.Context, func(error)) {
	ctx, span := o.startSpan(ctx, fullMethod)
	attributes := o.attributesOf(fullMethod, kind)
	o.metrics.RPCStarted.Add(ctx, 1, attributes.call)
	o.metrics.RPCInFlight.Add(ctx, 1, attributes.call)
	begun := time.Now()
	isHurried := isHurried(ctx, begun)
	return ctx, func(err error) {
		took := time.Since(begun)
		endSpan(span, err)
		o.metrics.RPCInFlight.Add(ctx, -1, attributes.call)
		o.metrics.RPCDuration.Record(ctx, took.Seconds(), attributes.call)
		if err == nil {
			o.metrics.RPCHandled.Add(ctx, 1, attributes.ok)
			o.log(ctx, slog.LevelDebug, fullMethod, codes.OK, took, nil)
			return
		}
		code := Status(err).Code()
		ofCode := metric.WithAttributes(attribute.String("grpc_code", code.String()))
		o.metrics.RPCHandled.Add(ctx, 1, attributes.call, ofCode)
		level := levelOf(code)
		if isCallers(err) || isHurried && code == codes.DeadlineExceeded {
			level = slog.LevelDebug
		} else if isOurs(code) {
			o.metrics.RPCFailures.Add(ctx, 1, attributes.call, ofCode)
		}
		o.log(ctx, level, fullMethod, code, took, err)
	}
}

// leastPatience is what a caller has to wait before it is our failure that it got
// no answer: any caller could ask for one within a nanosecond.
const leastPatience = time.Second

// isHurried reports whether a call has less time than leastPatience.
func isHurried(ctx context.Context, now time.Time) bool {
	deadline, ok := ctx.Deadline()
	return ok && deadline.Sub(now) < leastPatience
}

// isOurs reports whether a code says that the backend failed, unless it is known
// that the caller brought it about.
func isOurs(code codes.Code) bool { return slices.Contains(ourCodes[:], code) }

var ourCodes = [...]codes.Code{codes.Internal, codes.Unknown, codes.DataLoss, codes.Unavailable, codes.DeadlineExceeded}

// beginAside is Begin for calls that stay.
func (o *Observer) beginAside(ctx context.Context, fullMethod, kind string) (observed context.Context, end func(error)) {
	Aside(func() { observed, end = o.Begin(ctx, fullMethod, kind) }) //nolint:fatcontext // assigned once
	return observed, end
}

func (o *Observer) log(ctx context.Context, level slog.Level, fullMethod string, code codes.Code, took time.Duration, err error) {
	if errors.Is(err, errDraining) { // a stream that ends with its server, as all of them do
		level = slog.LevelDebug
	}
	if strings.HasPrefix(fullMethod, healthService) || !o.logger.Enabled(ctx, level) {
		return
	}
	o.logger.LogAttrs(ctx, level, "call", slog.String("method", fullMethod),
		slog.String("code", code.String()), slog.Duration("took", took), slog.Any("cause", causeOf(err, level)))
}

func (o *Observer) attributesOf(fullMethod, kind string) measured {
	key := methodKey{fullMethod, kind}
	if known, ok := o.methods.Load(key); ok {
		return known.(measured)
	}
	service, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	labels := []attribute.KeyValue{
		attribute.String("grpc_service", service), attribute.String("grpc_method", method), attribute.String("grpc_type", kind),
	}
	made := measured{
		call: metric.WithAttributeSet(attribute.NewSet(labels...)),
		ok:   metric.WithAttributeSet(attribute.NewSet(append(labels, attribute.String("grpc_code", codes.OK.String()))...)),
	}
	o.methods.Store(key, made)
	for _, code := range ourCodes { // a rate needs a value before the first failure
		o.metrics.RPCFailures.Add(context.Background(), 0, made.call, metric.WithAttributes(attribute.String("grpc_code", code.String())))
	}
	return made
}

// intercept observes every call of a grpc-go server.
func (o *Observer) intercept(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	name := info.FullMethod
	if server == nil { // the handler of unknown methods has no service
		name = UnknownMethod
	}
	begin := o.Begin
	if info.IsServerStream {
		begin = o.beginAside
	}
	ctx, end := begin(stream.Context(), name, typeOf(info))
	observed := &observedStream{ServerStream: stream, ctx: ctx}
	err := handle(server, observed)
	if observed.gone.Load() && Status(err).Code() == codes.Unavailable && !errors.Is(err, errDraining) {
		end(errGone) // to be counted: a drain, which fails sends, too, is still to be told
	} else {
		end(err)
	}
	return err
}

// errGone is how a call ends whose caller did not wait for what was sent: nothing
// was unavailable, and nobody reads the status.
var errGone = status.Error(codes.Canceled, "the caller has gone")

// observedStream has the context of the call's span and notices that its caller
// has gone. Sends may come from any goroutine of the call.
type observedStream struct {
	grpc.ServerStream
	ctx  context.Context
	gone atomic.Bool
}

func (s *observedStream) Context() context.Context { return s.ctx }

func (s *observedStream) SendMsg(m any) error {
	err := s.ServerStream.SendMsg(m)
	if err != nil {
		s.gone.Store(true)
	}
	return err
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
func causeOf(err error, level slog.Level) any {
	if err == nil || level == slog.LevelDebug {
		return nil
	}
	return err.Error()
}
