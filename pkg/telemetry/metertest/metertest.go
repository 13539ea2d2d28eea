// Package metertest reads counters in tests.
package metertest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Meter is the metrics of a part under test.
type Meter struct {
	*telemetry.Metrics

	t      testing.TB
	reader *sdkmetric.ManualReader
}

// New returns metrics that are all zero.
func New(t testing.TB) *Meter {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	metrics, err := telemetry.NewMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	require.NoError(t, err)
	return &Meter{metrics, t, reader}
}

// Count sums a counter over the points that have all of the labels.
func (m *Meter) Count(name string, labels ...attribute.KeyValue) (sum int64) {
	m.t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(m.t, m.reader.Collect(context.Background(), &all))
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			points, ok := metric.Data.(metricdata.Sum[int64])
			if metric.Name != name || !ok {
				continue
			}
			for _, point := range points.DataPoints {
				if hasAll(point.Attributes, labels) {
					sum += point.Value
				}
			}
		}
	}
	return sum
}

// Gauge is the value of a gauge's point that has all of the labels; 0 without one.
func (m *Meter) Gauge(name string, labels ...attribute.KeyValue) (value int64) {
	m.t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(m.t, m.reader.Collect(context.Background(), &all))
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			points, ok := metric.Data.(metricdata.Gauge[int64])
			if metric.Name != name || !ok {
				continue
			}
			for _, point := range points.DataPoints {
				if hasAll(point.Attributes, labels) {
					value = point.Value
				}
			}
		}
	}
	return value
}

func hasAll(set attribute.Set, labels []attribute.KeyValue) bool {
	for _, label := range labels {
		if value, ok := set.Value(label.Key); !ok || value != label.Value {
			return false
		}
	}
	return true
}
