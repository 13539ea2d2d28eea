package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/metertest"
)

func start(t *testing.T, environment map[string]string) *telemetry.Telemetry {
	t.Helper()
	cfg, err := config.LoadFrom[telemetry.Config](environment)
	require.NoError(t, err)
	made, err := telemetry.Start(t.Context(), cfg, "1.2.3", telemetry.Options{
		Logger: slog.New(slog.DiscardHandler), ExportInterval: 10 * time.Millisecond,
	})
	require.NoError(t, err)
	return made
}

func scrape(t *testing.T, address string) string {
	t.Helper()
	answer, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(text)
}

func TestPrometheusShowsTheNamesOfTheContract(t *testing.T) {
	made := start(t, map[string]string{"XMTP_METRICS_LISTEN": "127.0.0.1:0"})
	t.Cleanup(func() { made.Close(context.Background()) })
	for _, role := range []string{telemetry.Gateway, telemetry.Streamer} {
		m, err := made.Metrics(t.Context(), role)
		require.NoError(t, err)
		again, err := made.Metrics(t.Context(), role)
		require.NoError(t, err)
		require.Same(t, m, again, "a role that starts again goes on counting")
		m.RPCStarted.Add(t.Context(), 2, metric.WithAttributes(attribute.String("grpc_service", "s")))
		m.RPCDuration.Record(t.Context(), 0.5)
	}
	text := scrape(t, made.MetricsAddress())
	for _, line := range []string{
		`grpc_server_started_total{grpc_service="s",role="gateway"} 2`,
		`grpc_server_started_total{grpc_service="s",role="streamer"} 2`,
		`grpc_server_handling_seconds_bucket{role="gateway",le="0.512"} 1`,
		`xmtp_backend_info{role="gateway",version="1.2.3"} 1`,
		`xmtp_stream_ended_total{reason="exhausted",role="streamer"} 0`,
		`xmtp_gateway_repeated_calls_total{role="gateway"} 0`,
	} {
		require.Contains(t, text, line+"\n")
	}
	require.NotContains(t, text, "otel_scope")
	require.NotContains(t, text, "target_info")
	require.NotContains(t, text, `xmtp_stream_ended_total{reason="exhausted",role="gateway"}`, "only the role that counts it begins at zero")
	require.Contains(t, text, "go_goroutines ")
}

func TestTheCatalogueHasEveryInstrumentOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range telemetry.Catalogue() {
		require.False(t, seen[d.Name], d.Name)
		seen[d.Name] = true
		require.NotEmpty(t, d.Meaning, d.Name)
		require.NotEmpty(t, d.Roles, d.Name)
		require.Equal(t, d.Type == "counter", strings.HasSuffix(d.Name, "_total"), d.Name)
		for _, label := range d.Labels {
			require.NotEmpty(t, label.Meaning, d.Name)
		}
	}
	require.Greater(t, len(seen), 30)
}

func TestABudgetIsShownUntilAnotherTakesItsName(t *testing.T) {
	meter := metertest.New(t)
	requests := attribute.String("budget", "requests")
	first, second := budget.New(1000, 0), budget.New(2000, 0)
	meter.ObserveBudget("requests", first)
	require.True(t, first.Holder().TryTake(300))
	require.EqualValues(t, 300, meter.Gauge("xmtp_budget_used_bytes", requests))
	require.EqualValues(t, 1000, meter.Gauge("xmtp_budget_total_bytes", requests))
	meter.ObserveBudget("requests", second)
	require.Zero(t, meter.Gauge("xmtp_budget_used_bytes", requests))
	require.EqualValues(t, 2000, meter.Gauge("xmtp_budget_total_bytes", requests))
}

func TestACollectorThatIsAwayDelaysNothing(t *testing.T) {
	listener, err := freeport.Listen() // takes connections and answers nothing
	require.NoError(t, err)
	defer listener.Close()
	for _, endpoint := range []string{"http://127.0.0.1:1", "http://" + listener.Addr().String()} {
		made := start(t, map[string]string{"XMTP_OTLP_ENDPOINT": endpoint, "XMTP_TRACE_RATIO": "1"})
		m, err := made.Metrics(t.Context(), telemetry.Publisher)
		require.NoError(t, err)
		begun := time.Now()
		for range 50_000 { // more than any queue holds
			_, span := m.Tracer.Start(t.Context(), "work")
			m.NoticesSent.Add(t.Context(), 1)
			span.End()
		}
		require.Less(t, time.Since(begun), 20*time.Second, "recording waits for nobody")
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		begun = time.Now()
		require.Error(t, made.Shutdown(ctx), "what was not sent is reported")
		require.Less(t, time.Since(begun), 10*time.Second)
		cancel()
	}
}

func TestWithoutACollectorNothingIsTraced(t *testing.T) {
	for _, environment := range []map[string]string{
		{"XMTP_TRACE_RATIO": "1"},
		{"XMTP_TRACE_RATIO": "0", "XMTP_OTLP_ENDPOINT": "http://127.0.0.1:1"},
	} {
		made := start(t, environment)
		m, err := made.Metrics(t.Context(), telemetry.Reader)
		require.NoError(t, err)
		require.Nil(t, m.Tracer)
		require.Empty(t, made.MetricsAddress())
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_ = made.Shutdown(ctx) // the collector of the second case is away
		cancel()
	}
}

func TestWrongValuesAreNamedTogether(t *testing.T) {
	_, err := config.LoadFrom[telemetry.Config](map[string]string{
		"XMTP_OTLP_ENDPOINT": "collector:4317", "XMTP_METRICS_LISTEN": "9464", "XMTP_TRACE_RATIO": "NaN",
		"XMTP_LOG_LEVEL": "loud", "XMTP_LOG_FORMAT": "xml",
	})
	for _, name := range []string{"XMTP_OTLP_ENDPOINT", "XMTP_METRICS_LISTEN", "XMTP_TRACE_RATIO", "XMTP_LOG_LEVEL", "XMTP_LOG_FORMAT"} {
		require.ErrorContains(t, err, name)
	}
}

func TestAPortInUseIsNamed(t *testing.T) {
	listener, err := freeport.Listen()
	require.NoError(t, err)
	defer listener.Close()
	_, err = telemetry.Start(t.Context(), telemetry.Config{MetricsListen: listener.Addr().String()}, "1", telemetry.Options{})
	require.ErrorContains(t, err, "XMTP_METRICS_LISTEN")
}

func TestLinesOfATracedCallHaveItsIds(t *testing.T) {
	var out bytes.Buffer
	logger := telemetry.NewLogger(telemetry.Config{LogLevel: "info"}, &out)
	provider := sdktrace.NewTracerProvider()
	ctx, span := provider.Tracer("test").Start(t.Context(), "call")
	defer span.End()
	logger.With("role", "reader").InfoContext(ctx, "inside")
	logger.Info("outside")
	logger.Debug("not shown")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	var inside map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &inside))
	require.Equal(t, span.SpanContext().TraceID().String(), inside["trace_id"])
	require.Equal(t, span.SpanContext().SpanID().String(), inside["span_id"])
	require.Equal(t, "reader", inside["role"])
	require.NotContains(t, lines[1], "trace_id")
}

func TestASpanExportsNoErrorText(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	ctx, root := provider.Tracer("test").Start(t.Context(), "call")
	inner, end := telemetry.Span(ctx, "part")
	require.NotEqual(t, ctx, inner)
	end(context.DeadlineExceeded)
	root.End()
	part := recorder.Ended()[0]
	require.Equal(t, root.SpanContext().SpanID(), part.Parent().SpanID())
	require.Equal(t, "Error", part.Status().Code.String())
	require.Empty(t, part.Status().Description)
	require.Empty(t, part.Events())
}

func TestAnUntracedPartCostsNothing(t *testing.T) {
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.SpanContext{})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, end := telemetry.Span(ctx, "part")
		end(nil)
	}))
}
