package streamer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// meter reads the metrics of a streamer under test.
type meter struct {
	t      testing.TB
	reader *sdkmetric.ManualReader
}

// measured gives a streamer metrics that the test can read.
func measured(t testing.TB) (*meter, option) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	metrics, err := telemetry.NewMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	require.NoError(t, err)
	return &meter{t, reader}, func(_ *streamer.Config, deps *streamer.Deps) { deps.Metrics = metrics }
}

// sent counts envelopes handed to streams: straight from notices, and those that
// were read from the database.
func (m *meter) sent() (live, read int64) {
	m.t.Helper()
	return m.count("xmtp_stream_envelopes_sent", "phase", "live"), m.count("xmtp_stream_envelopes_sent", "phase", "catch_up")
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

// count is the value of a counter at a label's value.
func (m *meter) count(name, label, value string) (sum int64) {
	m.t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(m.t, m.reader.Collect(m.t.Context(), &all))
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			points, ok := metric.Data.(metricdata.Sum[int64])
			if metric.Name != name || !ok {
				continue
			}
			for _, point := range points.DataPoints {
				if got, has := point.Attributes.Value(attribute.Key(label)); has && got.AsString() == value {
					sum += point.Value
				}
			}
		}
	}
	return sum
}
