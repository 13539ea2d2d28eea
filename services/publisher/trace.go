package publisher

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

// traceGroup begins the span of a transaction. It belongs to the first traced
// request of the group and links to the others.
func (p *Publisher) traceGroup(ctx context.Context, requests []*request.Request) (context.Context, func(error)) {
	if p.deps.Metrics.Tracer == nil {
		return ctx, func(error) {}
	}
	var parent trace.SpanContext
	var others []trace.Link
	for _, r := range requests {
		caller := r.Trace.SpanContext()
		switch {
		case !caller.IsSampled():
		case !parent.IsValid():
			parent = caller
		default:
			others = append(others, trace.Link{SpanContext: caller})
		}
	}
	if !parent.IsValid() {
		return ctx, func(error) {}
	}
	ctx, span := p.deps.Metrics.Tracer.Start(trace.ContextWithSpanContext(ctx, parent), "publish transaction", //nolint:spancheck // see below
		trace.WithLinks(others...), trace.WithAttributes(attribute.Int("xmtp.requests", len(requests))))
	return ctx, func(err error) { telemetry.EndSpan(span, err) } //nolint:spancheck // the returned function ends it
}
