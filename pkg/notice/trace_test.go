package notice_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/xmtp-selfhosted/backend/pkg/notice"
)

func TestATraceContextSurvivesTheBus(t *testing.T) {
	span := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2, 15: 9}, SpanID: trace.SpanID{3, 7: 8}, TraceFlags: trace.FlagsSampled, Remote: true,
	})
	wire := notice.TraceOf(span)
	require.Equal(t, span, wire.SpanContext())
	require.True(t, wire.IsSampled())
	require.False(t, notice.TraceOf(span.WithTraceFlags(0)).IsSampled())
	require.Zero(t, notice.TraceOf(trace.SpanContext{}))
	require.False(t, notice.Trace{}.SpanContext().IsValid())
}
