package telemetry_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metricscollector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracecollector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// tempo takes OTLP over gRPC as Tempo does, and keeps all of it.
type tempo struct {
	tracecollector.UnimplementedTraceServiceServer
	mu       sync.Mutex
	spans    []span
	metrics  map[string]bool
	exported [][]byte
}

// span is one that was received, with its role.
type span struct {
	*traces.Span
	role string
}

// metricsService is the other service: both have a method called Export.
type metricsService struct {
	metricscollector.UnimplementedMetricsServiceServer
	*tempo
}

func startTempo(t *testing.T) (*tempo, string) {
	t.Helper()
	listener, err := freeport.Listen()
	require.NoError(t, err)
	r := &tempo{metrics: map[string]bool{}}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20)) // the collector may send all that waits at once
	tracecollector.RegisterTraceServiceServer(server, r)
	metricscollector.RegisterMetricsServiceServer(server, metricsService{tempo: r})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return r, "http://" + listener.Addr().String()
}

// Export implements the trace service.
func (r *tempo) Export(_ context.Context, request *tracecollector.ExportTraceServiceRequest) (*tracecollector.ExportTraceServiceResponse, error) {
	r.keep(request)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		role := ""
		for _, attribute := range resource.GetResource().GetAttributes() {
			if attribute.GetKey() == "role" {
				role = attribute.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, span{s, role})
			}
		}
	}
	return &tracecollector.ExportTraceServiceResponse{}, nil
}

// Export implements the metrics service.
func (r metricsService) Export(_ context.Context, request *metricscollector.ExportMetricsServiceRequest) (*metricscollector.ExportMetricsServiceResponse, error) {
	r.keep(request)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range request.GetResourceMetrics() {
		for _, scope := range resource.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				r.tempo.metrics[promName(m)] = true
			}
		}
	}
	return &metricscollector.ExportMetricsServiceResponse{}, nil
}

// promName is the metric's name in Prometheus.
func promName(m *metrics.Metric) string {
	if m.GetSum().GetIsMonotonic() {
		return m.GetName() + "_total"
	}
	return m.GetName()
}

func (r *tempo) keep(request proto.Message) {
	encoded, err := proto.Marshal(request)
	if err != nil {
		panic(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exported = append(r.exported, encoded)
}
