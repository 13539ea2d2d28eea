package streamer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry/metertest"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// meter reads the metrics of a streamer under test.
type meter struct {
	*metertest.Meter

	t testing.TB
}

// measured gives a streamer metrics that the test can read.
func measured(t testing.TB) (*meter, option) {
	t.Helper()
	m := &meter{metertest.New(t), t}
	return m, func(_ *streamer.Config, deps *streamer.Deps) { deps.Metrics = m.Metrics }
}

// sent counts envelopes handed to streams: straight from notices, and those that
// were read from the database.
func (m *meter) sent() (live, read int64) {
	m.t.Helper()
	const name = "xmtp_stream_envelopes_sent"
	return m.Count(name, attribute.String("phase", "live")), m.Count(name, attribute.String("phase", "catch_up"))
}

// awaitSent is sent once it has counted so many: a frame is counted after it went
// out, so its client may be ahead.
func (m *meter) awaitSent(total int) (live, read int64) {
	m.t.Helper()
	require.Eventually(m.t, func() bool {
		live, read = m.sent()
		return live+read >= int64(total)
	}, within, time.Millisecond, "not everything that arrived was counted")
	require.EqualValues(m.t, total, live+read)
	return live, read
}
