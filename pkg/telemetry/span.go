package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of this project as an instrumentation.
const scope = "github.com/xmtp-selfhosted/backend"

// Span begins a part of the call that ctx belongs to; the returned function ends
// it, with the part's error. The name is a fixed text. Nothing happens when the
// call is not traced, and nothing is spent.
func Span(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, func(error)) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, notTraced
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithAttributes(attributes...)) //nolint:spancheck // the returned function ends it
	return ctx, func(err error) { EndSpan(span, err) }                                                       //nolint:spancheck // see above
}

func notTraced(error) {}

// EndSpan ends a span. Of an error only that there was one is exported: its text
// may come from a client.
func EndSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}
