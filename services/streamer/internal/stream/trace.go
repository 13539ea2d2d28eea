package stream

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// follow marks the envelope of a traced publish.
func (m *Meter) follow(e *delivery.Envelope, n *notice.Notice) {
	if m.metrics.Tracer != nil && n.Trace.IsSampled() {
		e.Trace.Store(&delivery.Trace{Context: n.Trace, Heard: time.Now()})
	}
}

// delivered adds the delivery to the trace of its publish: from the arrival of
// the notice to the first stream that took the envelope. A topic may have many
// streams; one span says enough. It links to the stream.
func (m *Meter) delivered(ctx context.Context, traced []*delivery.Envelope) {
	for _, e := range traced {
		mark := e.Trace.Swap(nil)
		if mark == nil {
			continue // another stream was faster
		}
		publish := trace.ContextWithSpanContext(context.Background(), notice.Trace(mark.Context).SpanContext())
		_, span := m.metrics.Tracer.Start(publish, "deliver", trace.WithTimestamp(mark.Heard),
			trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(trace.LinkFromContext(ctx)))
		span.End()
	}
}
