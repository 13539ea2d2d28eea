package rpc

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// A span of a call has its method and its status code, and nothing else: not the
// status's text, no address, and no name of a method that does not exist.

// traceHeader carries the trace of a call from one part of the backend to the
// next.
const traceHeader = "traceparent"

// startSpan begins the span of a call. It is nil when nothing is traced.
func (o *Observer) startSpan(ctx context.Context, fullMethod string) (context.Context, trace.Span) {
	tracer := o.metrics.Tracer
	if tracer == nil || strings.HasPrefix(fullMethod, healthService) {
		return ctx, nil
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	if o.internal {
		header := metadata.ValueFromIncomingContext(ctx, traceHeader)
		if len(header) > 0 {
			ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceHeader: header[0]})
		}
	} else {
		options = append(options, trace.WithNewRoot())
	}
	return tracer.Start(ctx, strings.TrimPrefix(fullMethod, "/"), options...) //nolint:spancheck // endSpan ends it
}

func endSpan(span trace.Span, err error) {
	if span == nil {
		return
	}
	if span.IsRecording() {
		span.SetAttributes(attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.response.status_code", Status(err).Code().String()))
	}
	telemetry.EndSpan(span, err)
}

// propagated tells the role which trace a call belongs to. Whatever the client
// said about that is replaced.
func propagated(ctx context.Context) context.Context {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	headers, _ := metadata.FromOutgoingContext(ctx) // a copy
	if headers == nil {
		headers = metadata.MD{}
	}
	headers.Set(traceHeader, carrier[traceHeader])
	headers.Delete("tracestate")
	return metadata.NewOutgoingContext(ctx, headers)
}

func propagateUnary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return invoke(propagated(ctx), method, request, reply, conn, options...)
}

func propagateStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(propagated(ctx), desc, conn, method, options...)
}
