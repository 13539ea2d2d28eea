package stream

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// Meter counts what streams do. Its label sets are made once.
type Meter struct {
	metrics *telemetry.Metrics
	frames  [delivery.Keepalive + 1]tally
	live    tally
	catchUp tally
	last    delivery.Stats
}

// tally counts between two sweeps: an instrument costs as much for each frame of
// each stream as the engine does.
type tally struct {
	counted atomic.Int64
	label   metric.MeasurementOption
}

func (t *tally) report(ctx context.Context, counter metric.Int64Counter) {
	if n := t.counted.Swap(0); n > 0 {
		counter.Add(ctx, n, t.label)
	}
}

// NewMeter returns a meter on the instruments of a process.
func NewMeter(metrics *telemetry.Metrics) *Meter {
	m := &Meter{metrics: metrics}
	for kind := range m.frames {
		m.frames[kind].label = label("frame", delivery.Kind(kind).String())
	}
	m.live.label, m.catchUp.label = label("phase", "live"), label("phase", "catch_up")
	return m
}

func label(name, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(name, value)))
}

var (
	heard    = label("outcome", "heard")
	foreign  = label("outcome", "foreign")
	bidi     = label("kind", "bidi")
	static   = label("kind", "static")
	endLabel = [...]metric.MeasurementOption{
		fault.Broken:        label("reason", "internal"),
		fault.Invalid:       label("reason", "invalid"),
		fault.TooLong:       label("reason", "too_long"),
		fault.HeadMoved:     label("reason", "internal"),
		fault.Unavailable:   label("reason", "unavailable"),
		fault.Late:          label("reason", "no_pong"),
		fault.Exhausted:     label("reason", "exhausted"),
		fault.Unimplemented: label("reason", "internal"),
		fault.Cancelled:     label("reason", "cancelled"),
	}
	endedByClient = label("reason", "half_close")
)

func (m *Meter) notice(outcome string) {
	option := heard
	if outcome == "foreign" {
		option = foreign
	}
	m.metrics.NoticesReceived.Add(context.Background(), 1, option)
}

func (m *Meter) found(envelopes int64) {
	if envelopes > 0 {
		m.metrics.SweepFound.Add(context.Background(), envelopes)
	}
}

func (m *Meter) opened(kind metric.MeasurementOption) {
	m.metrics.StreamSessions.Add(context.Background(), 1, kind)
}

func (m *Meter) ended(kind metric.MeasurementOption, err error) {
	ctx := context.Background()
	m.metrics.StreamSessions.Add(ctx, -1, kind)
	if err == nil {
		m.metrics.StreamEnded.Add(ctx, 1, endedByClient)
		return
	}
	m.metrics.StreamEnded.Add(ctx, 1, endLabel[fault.KindOf(err)])
}

// observe shows the budgets of the engine.
func (m *Meter) observe(budgets delivery.Budgets) {
	m.metrics.ObserveBudget("delivery", budgets.Delivery)
	m.metrics.ObserveBudget("notices", budgets.Notices)
	m.metrics.ObserveBudget("registrations", budgets.Registrations)
}

// figures are what is counted of a frame once the transport took it, when its
// envelopes are let go.
type figures struct {
	kind          delivery.Kind
	live, history int
	newest        int64                // ServerNS of a frame of live envelopes alone, or 0
	traced        []*delivery.Envelope // that may be the first to be delivered
}

func (m *Meter) figure(f *delivery.Frame) figures {
	all := len(f.Envelopes)
	counted := figures{kind: f.Kind, live: f.Live, history: all - f.Live}
	if f.Live > 0 && f.Live == all {
		counted.newest = f.Envelopes[all-1].ServerNS
	}
	if m.metrics.Tracer != nil {
		for _, e := range f.Envelopes {
			if e.Trace.Load() != nil {
				counted.traced = append(counted.traced, e)
			}
		}
	}
	return counted
}

func (m *Meter) sent(ctx context.Context, f figures) {
	m.frames[f.kind].counted.Add(1)
	if f.kind != delivery.Messages {
		return
	}
	m.delivered(ctx, f.traced)
	if f.live > 0 {
		m.live.counted.Add(int64(f.live))
	}
	// The newest waited least: one figure a frame is enough for a histogram.
	if f.newest > 0 {
		m.metrics.StreamLiveLatency.Record(context.Background(), time.Duration(time.Now().UnixNano()-f.newest).Seconds()) //nolint:contextcheck // to look for a trace in that of a stream costs as much as the rest
	}
	if f.history > 0 {
		m.catchUp.counted.Add(int64(f.history))
	}
}

// report hands on what was counted, and the changes of levels, since the call
// before. Calls come one at a time.
func (m *Meter) report(now delivery.Stats) {
	ctx := context.Background()
	for kind := range m.frames {
		m.frames[kind].report(ctx, m.metrics.StreamFramesSent)
	}
	m.live.report(ctx, m.metrics.StreamEnvelopesSent)
	m.catchUp.report(ctx, m.metrics.StreamEnvelopesSent)
	m.metrics.StreamTopicsRegistered.Add(ctx, int64(now.Registered-m.last.Registered))
	m.metrics.NoticeBufferBytes.Add(ctx, int64(now.NoticeBytes-m.last.NoticeBytes))
	m.metrics.DeliveryBudgetBytes.Add(ctx, int64(now.BudgetBytes-m.last.BudgetBytes))
	m.last = now
}
