// Package telemetry is what an operator sees: metrics, traces and logs through
// OpenTelemetry. Every metric name of the project is in this file. No topic,
// inbox, key, payload or header value, or anything derived from one, is ever a
// label.
package telemetry

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// Metrics are the instruments of one process, shared by its roles. Their names
// are those that operators of comparable backends already chart; the Prometheus
// exporter appends _total to counters.
type Metrics struct {
	RPCStarted  metric.Int64Counter
	RPCHandled  metric.Int64Counter
	RPCDuration metric.Float64Histogram
	RPCInFlight metric.Int64UpDownCounter

	PublishEnvelopes  metric.Int64Counter
	PublishRejections metric.Int64Counter
	PublishGroupSize  metric.Int64Histogram
	PublishCommit     metric.Float64Histogram
	Lineage           metric.Int64Counter

	NoticesSent     metric.Int64Counter
	NoticesDropped  metric.Int64Counter
	NoticesReceived metric.Int64Counter

	SCWVerifications metric.Int64Counter
	DBErrors         metric.Int64Counter

	StreamSessions         metric.Int64UpDownCounter
	StreamTopicsRegistered metric.Int64UpDownCounter
	StreamFramesSent       metric.Int64Counter
	StreamEnvelopesSent    metric.Int64Counter
	StreamEnded            metric.Int64Counter
	StreamLiveLatency      metric.Float64Histogram
	SweepFound             metric.Int64Counter
	SweepAge               metric.Float64Gauge
	NoticeBufferBytes      metric.Int64UpDownCounter
	DeliveryBudgetBytes    metric.Int64UpDownCounter

	GatewayHeldCalls     metric.Int64UpDownCounter
	GatewayRepeatedCalls metric.Int64Counter
	GatewayBodyBytes     metric.Int64UpDownCounter
}

// latencyBuckets are in seconds: from a tenth of an idle commit to a time-out.
var latencyBuckets = []float64{.0001, .00025, .0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 5, 10, 30}

// sizeBuckets count requests or rows.
var sizeBuckets = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}

// NewMetrics makes the instruments on a provider.
func NewMetrics(provider metric.MeterProvider) (*Metrics, error) {
	b := builder{meter: provider.Meter("github.com/xmtp-selfhosted/backend")}
	m := &Metrics{
		RPCStarted:  b.counter("grpc_server_started", "Calls that began."),
		RPCHandled:  b.counter("grpc_server_handled", "Calls that ended, by status code."),
		RPCDuration: b.histogram("grpc_server_handling_seconds", "Time from the start of a call to its end.", latencyBuckets),
		RPCInFlight: b.upDown("grpc_server_in_flight", "Calls that began and did not end yet."),

		PublishEnvelopes:  b.counter("xmtp_publish_envelopes", "Envelopes by outcome: stored, duplicate, rejected."),
		PublishRejections: b.counter("xmtp_publish_rejections", "Rejected publish requests by reason."),
		PublishGroupSize:  b.intHistogram("xmtp_publish_group_size", "Requests that shared one transaction.", sizeBuckets),
		PublishCommit:     b.histogram("xmtp_publish_commit_seconds", "Time of a publish transaction, from its start to its commit.", latencyBuckets),
		Lineage:           b.counter("xmtp_lineage_changes", "Times the sequence was moved on after a failover or a restore."),

		NoticesSent:     b.counter("xmtp_notices_sent", "Commit notices handed to the bus."),
		NoticesDropped:  b.counter("xmtp_notices_dropped", "Commit notices that were not sent, by reason; the sweep finds their envelopes."),
		NoticesReceived: b.counter("xmtp_notices_received", "Commit notices by outcome: linked, gap, old, foreign, malformed, unregistered."),

		SCWVerifications: b.counter("xmtp_scw_verifications", "Contract-wallet verifications by result: valid, invalid, error."),
		DBErrors:         b.counter("xmtp_db_errors", "Failed database operations by kind."),

		StreamSessions:         b.upDown("xmtp_stream_sessions", "Open streams by kind: bidi, static."),
		StreamTopicsRegistered: b.upDown("xmtp_stream_topics_registered", "Topics registered on all open streams."),
		StreamFramesSent:       b.counter("xmtp_stream_frames_sent", "Frames sent, by kind of frame."),
		StreamEnvelopesSent:    b.counter("xmtp_stream_envelopes_sent", "Envelopes sent by phase: catch_up, live."),
		StreamEnded:            b.counter("xmtp_stream_ended", "Streams that ended, by reason."),
		StreamLiveLatency:      b.histogram("xmtp_stream_live_latency_seconds", "Time from the start of the storing transaction to the hand-over to a stream, for live envelopes.", latencyBuckets),
		SweepFound:             b.counter("xmtp_sweep_found", "Envelopes that the sweep found and no notice had announced."),
		SweepAge:               b.gauge("xmtp_sweep_window_age_seconds", "How long the upper end of the sweep window has stood still."),
		NoticeBufferBytes:      b.upDown("xmtp_notice_buffer_bytes", "Recent notices kept for registrations that catch up."),
		DeliveryBudgetBytes:    b.upDown("xmtp_delivery_budget_bytes", "Fetched pages and queued output of all streams."),

		GatewayHeldCalls:     b.upDown("xmtp_gateway_held_calls", "Calls that wait for a ready instance of their role."),
		GatewayRepeatedCalls: b.counter("xmtp_gateway_repeated_calls", "Unary calls sent again because their instance went away."),
		GatewayBodyBytes:     b.upDown("xmtp_gateway_body_bytes", "Request bodies in flight or held."),
	}
	return m, errors.Join(b.errs...)
}

// Discard returns metrics that record nothing.
func Discard() *Metrics {
	m, err := NewMetrics(noop.NewMeterProvider())
	if err != nil {
		// The noop provider has no way to fail.
		panic(err)
	}
	return m
}

// builder collects the errors of the instruments, so that one check serves all.
type builder struct {
	meter metric.Meter
	errs  []error
}

func keep[T any](b *builder, instrument T, err error) T {
	b.errs = append(b.errs, err)
	return instrument
}

func (b *builder) counter(name, description string) metric.Int64Counter {
	i, err := b.meter.Int64Counter(name, metric.WithDescription(description))
	return keep(b, i, err)
}

func (b *builder) upDown(name, description string) metric.Int64UpDownCounter {
	i, err := b.meter.Int64UpDownCounter(name, metric.WithDescription(description))
	return keep(b, i, err)
}

func (b *builder) gauge(name, description string) metric.Float64Gauge {
	i, err := b.meter.Float64Gauge(name, metric.WithDescription(description))
	return keep(b, i, err)
}

func (b *builder) histogram(name, description string, buckets []float64) metric.Float64Histogram {
	i, err := b.meter.Float64Histogram(name, metric.WithDescription(description), metric.WithExplicitBucketBoundaries(buckets...))
	return keep(b, i, err)
}

func (b *builder) intHistogram(name, description string, buckets []float64) metric.Int64Histogram {
	i, err := b.meter.Int64Histogram(name, metric.WithDescription(description), metric.WithExplicitBucketBoundaries(buckets...))
	return keep(b, i, err)
}
