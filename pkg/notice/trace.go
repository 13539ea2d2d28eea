package notice

import "go.opentelemetry.io/otel/trace"

// TraceOf is a trace context in the form of a notice, none if it is not valid.
func TraceOf(span trace.SpanContext) (wire Trace) {
	if !span.IsValid() {
		return wire
	}
	traceID, spanID := span.TraceID(), span.SpanID()
	copy(wire[:], traceID[:])
	copy(wire[len(traceID):], spanID[:])
	wire[traceLength-1] = byte(span.TraceFlags())
	return wire
}

// SpanContext is the publish that the notice belongs to; it is not valid when
// there is none.
func (t Trace) SpanContext() trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(t[:16]), SpanID: trace.SpanID(t[16:24]), TraceFlags: trace.TraceFlags(t[24]), Remote: true,
	})
}

// IsSampled says whether the publish is traced.
func (t Trace) IsSampled() bool { return trace.TraceFlags(t[traceLength-1]).IsSampled() }
