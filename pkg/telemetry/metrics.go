// Package telemetry is what an operator sees: metrics, traces and logs through
// OpenTelemetry. Every metric name of the project is in this file. No topic,
// inbox, key, payload or header value, or anything derived from one, is ever a
// label, an attribute of a span or part of a log line.
package telemetry

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
)

// xmtp_backend_info is 1; its label is the point.
const (
	infoName    = "xmtp_backend_info"
	infoMeaning = "The version of the program, in a label; the value is 1."
)

// Metrics are the instruments of one role. Their names are those that operators
// of comparable backends already chart; the Prometheus exporter appends _total
// to counters.
type Metrics struct {
	// Tracer records spans. It is nil while tracing is off, so that nothing is
	// spent on them.
	Tracer trace.Tracer

	RPCStarted  metric.Int64Counter
	RPCHandled  metric.Int64Counter
	RPCFailures metric.Int64Counter
	RPCDuration metric.Float64Histogram
	RPCInFlight metric.Int64UpDownCounter
	Ready       metric.Int64Gauge

	PublishEnvelopes  metric.Int64Counter
	PublishRejections metric.Int64Counter
	PublishGroupSize  metric.Int64Histogram
	PublishCommit     metric.Float64Histogram
	Lineage           metric.Int64Counter

	NoticesSent     metric.Int64Counter
	NoticesDropped  metric.Int64Counter
	NoticesReceived metric.Int64Counter
	BusConnected    metric.Int64Gauge

	SCWVerifications metric.Int64Counter
	DBErrors         metric.Int64Counter
	DBDuration       metric.Float64Histogram
	ReplicaLag       metric.Float64Gauge

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

	gatewayBodyBytes metric.Int64ObservableGauge

	budgetUsed  metric.Int64ObservableGauge
	budgetTotal metric.Int64ObservableGauge
	budgets     sync.Map // from their names
}

// latencyBuckets are in seconds: from a tenth of an idle commit to a time-out.
var latencyBuckets = []float64{.0001, .00025, .0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 5, 10, 30}

// sizeBuckets count requests or rows.
var sizeBuckets = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}

// The roles, as the role label has them.
const (
	Publisher = "publisher"
	Reader    = "reader"
	Streamer  = "streamer"
	Gateway   = "gateway"
)

// The labels of calls.
var (
	ofMethod   = label("grpc_service", "the service")
	ofCallKind = label("grpc_type", "the kind of call", "unary", "server_stream", "bidi_stream")
)

// NewMetrics makes the instruments on a provider.
func NewMetrics(provider metric.MeterProvider) (*Metrics, error) {
	m, b := build(provider)
	return m, b.err()
}

func build(provider metric.MeterProvider) (*Metrics, *builder) {
	b := &builder{meter: provider.Meter(scope)}
	calls := []Label{ofMethod, label("grpc_method", "its method"), ofCallKind}
	m := &Metrics{}

	b.in(Gateway, Publisher, Reader, Streamer)
	m.RPCStarted = b.counter("grpc_server_started", "Calls that began.", calls...)
	m.RPCHandled = b.counter("grpc_server_handled", "Calls that ended, by status code.", append(calls, label("grpc_code", "the status code, such as OK or InvalidArgument"))...)
	m.RPCFailures = b.counter("xmtp_call_failures", "Calls that failed on our side: neither by what their callers asked for nor because they had less than a second for it.", append(calls, label("grpc_code", "the status code: Internal, Unknown, DataLoss, Unavailable or DeadlineExceeded"))...)
	m.RPCDuration = b.histogram("grpc_server_handling_seconds", "Time from the start of a call to its end.", latencyBuckets, calls...)
	m.RPCInFlight = b.upDown("grpc_server_in_flight", "Calls that began and did not end yet.", calls...)
	m.Ready = b.intGauge("xmtp_ready", "1 while the role says that it serves, 0 while it does not.")

	budget := label("budget", "what the bytes are for")
	m.budgetUsed = b.observableGauge("xmtp_budget_used_bytes", "Bytes that the role holds on behalf of its callers.", budget)
	m.budgetTotal = b.observableGauge("xmtp_budget_total_bytes", "The most bytes that it holds for that, as its configuration says.", budget)

	b.in(Publisher)
	m.PublishEnvelopes = b.counter("xmtp_publish_envelopes", "Envelopes of publish requests, by what became of them.",
		label("outcome", "what became of them", "stored", "duplicate", "rejected"))
	m.PublishRejections = b.counter("xmtp_publish_rejections", "Publish requests that the client has to change.",
		label("reason", "why", "unspecified", "malformed_payload", "invalid_key_package", "invalid_identity_update", "invalid_signature", "too_large", "response_too_long", "head_moved"))
	m.PublishGroupSize = b.intHistogram("xmtp_publish_group_size", "Requests that shared one transaction.", sizeBuckets)
	m.PublishCommit = b.histogram("xmtp_publish_commit_seconds", "Time of a publish transaction, from the wait for its connection to its commit.", latencyBuckets)
	m.Lineage = b.counter("xmtp_lineage_changes", "Times the sequence was moved on after a failover or a restore.")
	m.NoticesSent = b.counter("xmtp_notices_sent", "Commit notices handed to the bus.")
	m.NoticesDropped = b.counter("xmtp_notices_dropped", "Commit notices that were not sent; the sweep finds their envelopes.",
		label("reason", "why", "queue_full", "disconnected", "too_large", "write_failed"))

	b.in(Publisher, Streamer)
	m.BusConnected = b.intGauge("xmtp_bus_connected", "1 while the role is connected to the bus, 0 while it is not.")

	b.in(Publisher, Reader)
	m.SCWVerifications = b.counter("xmtp_scw_verifications", "Contract-wallet verifications.",
		label("result", "error is a chain that did not answer", "valid", "invalid", "error"))

	b.in(Publisher, Reader, Streamer)
	m.DBErrors = b.counter("xmtp_db_errors", "Failed database operations.",
		label("kind", "unavailable: away, overloaded or a lock that was held; timeout: the time limit of a statement or call; internal: a defect", "unavailable", "timeout", "internal"))
	m.DBDuration = b.histogram("xmtp_db_operation_seconds", "Time of a database operation, the wait for a connection included.", latencyBuckets,
		label("operation", "what was done"))

	b.in(Reader, Streamer)
	m.ReplicaLag = b.gauge("xmtp_replica_lag_seconds", "How far the role's database is behind the primary; 0 on the primary itself and on a replica that has replayed all it received.",
		label("server", "which of the role's databases, by its place in the configuration"))

	b.in(Streamer)
	m.NoticesReceived = b.counter("xmtp_notices_received", "Commit notices that arrived.",
		label("outcome", "heard: given to the engine; foreign: of another lineage; malformed: of another version or program", "heard", "foreign", "malformed"))
	kind := label("kind", "the kind of stream", "bidi", "static")
	m.StreamSessions = b.upDown("xmtp_stream_sessions", "Open streams.", kind)
	m.StreamTopicsRegistered = b.upDown("xmtp_stream_topics_registered", "Topics registered on all open streams.")
	m.StreamFramesSent = b.counter("xmtp_stream_frames_sent", "Frames sent.",
		label("frame", "the kind of frame", "started", "applied", "messages", "ping", "pong", "keepalive"))
	m.StreamEnvelopesSent = b.counter("xmtp_stream_envelopes_sent", "Envelopes sent: live ones come straight from notices, the others from the database.",
		label("phase", "where they came from", "catch_up", "live"))
	m.StreamEnded = b.counter("xmtp_stream_ended", "Streams that ended.",
		label("reason", "exhausted is a client that was too slow or too busy, no_pong one that did not answer", "half_close", "cancelled", "invalid", "too_long", "exhausted", "no_pong", "unavailable", "internal"))
	m.StreamLiveLatency = b.histogram("xmtp_stream_live_latency_seconds", "Time from the start of the storing transaction to the hand-over to a stream, for live envelopes.", latencyBuckets)
	m.SweepFound = b.counter("xmtp_sweep_found", "Envelopes of registered topics that the sweep found and that no notice announced until the next sweep.")
	m.SweepAge = b.gauge("xmtp_sweep_window_age_seconds", "How long the upper end of the sweep window has stood still.")
	m.NoticeBufferBytes = b.upDown("xmtp_notice_buffer_bytes", "Recent notices kept for registrations that catch up.")
	m.DeliveryBudgetBytes = b.upDown("xmtp_delivery_budget_bytes", "Fetched pages and queued output of all streams.")

	b.in(Gateway)
	m.GatewayHeldCalls = b.upDown("xmtp_gateway_held_calls", "Calls that wait for a ready instance of their role.")
	m.GatewayRepeatedCalls = b.counter("xmtp_gateway_repeated_calls", "Calls sent again because their instance went away.")
	m.gatewayBodyBytes = b.observableGauge("xmtp_gateway_body_bytes", "Request bodies in flight or held.")

	_, err := b.meter.RegisterCallback(m.observeBudgets, m.budgetUsed, m.budgetTotal, m.gatewayBodyBytes)
	b.errs = append(b.errs, err)
	return m, b
}

// Budget is a bounded number of bytes, see package budget.
type Budget interface {
	Used() int64
	Total() int64
}

// GatewayBodies is the budget that xmtp_gateway_body_bytes shows, too.
const GatewayBodies = "bodies"

// ObserveBudget shows how full a budget is, under a name that it alone has in the
// role. It takes the place of an earlier one of that name.
func (m *Metrics) ObserveBudget(name string, budget Budget) { m.budgets.Store(name, budget) }

func (m *Metrics) observeBudgets(_ context.Context, o metric.Observer) error {
	m.budgets.Range(func(name, value any) bool {
		text, _ := name.(string)
		budget, ok := value.(Budget)
		if ok {
			of := metric.WithAttributes(attribute.String("budget", text))
			o.ObserveInt64(m.budgetUsed, budget.Used(), of)
			o.ObserveInt64(m.budgetTotal, budget.Total(), of)
		}
		if ok && text == GatewayBodies {
			o.ObserveInt64(m.gatewayBodyBytes, budget.Used())
		}
		return true
	})
	return nil
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
