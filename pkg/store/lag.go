package store

import (
	"context"
	_ "embed"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

//go:embed sql/replica_lag.sql
var replicaLagSQL string

var replicaLagStatement = statement{"the lag of the replica", replicaLagSQL}

// ReplicaLag is how far the server is behind its primary; 0 on the primary
// itself, and on a replica that has replayed all that it received.
func (p *Pool) ReplicaLag(ctx context.Context) (time.Duration, error) {
	lag := int64(0)
	err := p.read(ctx, replicaLagStatement, nil, func() { lag = 0 }, func(values [][]byte) error {
		c := columns{values: values}
		lag = c.int64()
		return c.err
	})
	return time.Duration(lag) * time.Microsecond, err
}

// lagTimeout bounds the question for the lag.
const lagTimeout = 2 * time.Second

// WatchLag reports the lag every so often until ctx ends. server says which of
// the role's databases it is. Measure must have been called.
func (p *Pool) WatchLag(ctx context.Context, server string, every time.Duration) {
	of := metric.WithAttributeSet(attribute.NewSet(attribute.String("server", server)))
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, lagTimeout)
		lag, err := p.ReplicaLag(asking)
		cancel()
		if err == nil {
			p.meter.metrics.ReplicaLag.Record(ctx, lag.Seconds(), of)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
