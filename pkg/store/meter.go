package store

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Measure counts, times and traces the operations of the pool from now on. It
// must be called before the pool is used.
func (p *Pool) Measure(metrics *telemetry.Metrics) { p.meter.metrics = metrics }

// meter measures operations. Its zero value does nothing.
type meter struct {
	metrics *telemetry.Metrics
	// operations keeps the label of each operation: their names are few.
	operations sync.Map
}

var (
	failedUnavailable = failed("unavailable")
	failedTimeout     = failed("timeout")
	failedInternal    = failed("internal")
)

func failed(kind string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("kind", kind)))
}

// begin starts to measure an operation, whose name is a fixed text.
func (m *meter) begin(ctx context.Context, operation string) (context.Context, func(error)) {
	if m.metrics == nil {
		return ctx, func(error) {}
	}
	ctx, endSpan := telemetry.Span(ctx, operation, attribute.String("db.system.name", "postgresql"))
	begun := time.Now()
	return ctx, func(err error) {
		endSpan(err)
		m.metrics.DBDuration.Record(ctx, time.Since(begun).Seconds(), m.label(operation))
		if err != nil {
			m.count(ctx, err)
		}
	}
}

func (m *meter) label(operation string) metric.MeasurementOption {
	if known, ok := m.operations.Load(operation); ok {
		return known.(metric.MeasurementOption)
	}
	made := metric.WithAttributeSet(attribute.NewSet(attribute.String("operation", operation)))
	m.operations.Store(operation, made)
	return made
}

// count counts failures of the database: a caller that went away, or what a
// client has to change, is none.
func (m *meter) count(ctx context.Context, err error) {
	switch fault.KindOf(err) {
	case fault.Unavailable:
		m.metrics.DBErrors.Add(ctx, 1, failedUnavailable)
	case fault.Late:
		m.metrics.DBErrors.Add(ctx, 1, failedTimeout)
	case fault.Broken:
		m.metrics.DBErrors.Add(ctx, 1, failedInternal)
	default:
	}
}
