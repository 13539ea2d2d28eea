package rpc_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

const clientsTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestAClientsTraceIsNotTakenOver(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	metrics := telemetry.Discard()
	metrics.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	observer := rpc.NewObserver(slog.New(slog.DiscardHandler), metrics)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", clientsTrace))
	ctx, end := observer.Begin(ctx, "/service/Method", "unary")
	require.True(t, trace.SpanContextFromContext(ctx).IsValid())
	end(errors.New("a text with what a client sent"))
	span := recorder.Ended()[0]
	require.Equal(t, "service/Method", span.Name())
	require.False(t, span.Parent().IsValid())
	require.NotEqual(t, "0af7651916cd43dd8448eb211c80319c", span.SpanContext().TraceID().String())
	require.Empty(t, span.Status().Description)
	for _, attribute := range span.Attributes() {
		require.NotContains(t, attribute.Value.String(), "client")
	}

	health, end := observer.Begin(t.Context(), "/grpc.health.v1.Health/Check", "unary")
	end(nil)
	require.False(t, trace.SpanContextFromContext(health).IsValid(), "probes are not traced")
	require.Len(t, recorder.Ended(), 1)
}

func TestWithoutATracerACallHasNoSpan(t *testing.T) {
	observer := rpc.NewObserver(slog.New(slog.DiscardHandler), telemetry.Discard())
	ctx, end := observer.Begin(t.Context(), "/service/Method", "unary")
	end(nil)
	require.Equal(t, t.Context(), ctx)
}

// BenchmarkObserve is what watching costs a call: without a tracer, with one
// that does not sample the call, and with one that does.
func BenchmarkObserve(b *testing.B) {
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test")
	always := sdktrace.NewTracerProvider().Tracer("test")
	for name, tracer := range map[string]trace.Tracer{"off": nil, "unsampled": never, "sampled": always} {
		b.Run(name, func(b *testing.B) {
			metrics := telemetry.Discard()
			metrics.Tracer = tracer
			observer := rpc.NewObserver(slog.New(slog.DiscardHandler), metrics)
			b.ReportAllocs()
			for b.Loop() {
				_, end := observer.Begin(context.Background(), "/service/Method", "unary")
				end(nil)
			}
		})
	}
}
