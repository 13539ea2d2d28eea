package telemetry_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

const (
	publishSpan   = "xmtp.backend.v1.PublishService/Publish"
	subscribeSpan = "xmtp.backend.v1.SubscriptionService/Subscribe"
)

// oneTrace looks for the tree of a publish:
//
//	gateway    xmtp.backend.v1.PublishService/Publish
//	publisher    xmtp.backend.v1.PublishService/Publish
//	publisher      publish transaction
//	publisher        publish
//	streamer       deliver, which links to the stream that it went to
func oneTrace(t *testing.T, seen *outcome) {
	byID := map[string]span{}
	for _, s := range seen.tempo.spans {
		byID[string(s.GetTraceId())+string(s.GetSpanId())] = s
	}
	parent := func(s span) (span, bool) {
		p, ok := byID[string(s.GetTraceId())+string(s.GetParentSpanId())]
		return p, ok
	}
	delivered, transactions := 0, 0
	for _, s := range seen.tempo.spans {
		switch {
		case s.role == telemetry.Streamer && s.GetName() == "deliver":
			delivered++
			requireAncestors(t, s, parent, "publisher "+publishSpan, "gateway "+publishSpan)
			requireLinkTo(t, s, byID, subscribeSpan)
		case s.role == telemetry.Publisher && s.GetName() == "publish":
			transactions++
			requireAncestors(t, s, parent, "publisher publish transaction", "publisher "+publishSpan, "gateway "+publishSpan)
		case s.GetName() == "read a page of a query":
			requireAncestors(t, s, parent, "reader xmtp.backend.v1.QueryService/Query", "gateway xmtp.backend.v1.QueryService/Query")
		}
		require.Empty(t, s.GetStatus().GetMessage(), s.GetName())
		require.Empty(t, s.GetEvents(), s.GetName())
	}
	require.Greater(t, delivered, 300, "nearly all of the 381 stored envelopes were live")
	require.Greater(t, transactions, 100)
}

func requireAncestors(t *testing.T, s span, parent func(span) (span, bool), names ...string) {
	t.Helper()
	for _, name := range names {
		p, ok := parent(s)
		require.True(t, ok, "%s has no parent, expected %s", s.GetName(), name)
		require.Equal(t, name, fmt.Sprintf("%s %s", p.role, p.GetName()))
		s = p
	}
	require.Empty(t, s.GetParentSpanId(), "the gateway begins the trace")
	require.Equal(t, traces.Span_SPAN_KIND_SERVER, s.GetKind())
}

func requireLinkTo(t *testing.T, s span, byID map[string]span, name string) {
	t.Helper()
	require.Len(t, s.GetLinks(), 1)
	link := s.GetLinks()[0]
	require.Equal(t, name, byID[string(link.GetTraceId())+string(link.GetSpanId())].GetName())
}
