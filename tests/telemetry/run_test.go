// Package telemetry runs the whole backend with real telemetry under a recorded
// client session, and looks at what came out: metrics on the Prometheus port,
// metrics and spans that the OpenTelemetry Collector received and passed on, logs.
// It is a module of its own for the sake of the collector and of Prometheus.
package telemetry_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/xmtp-selfhosted/backend/cmd/replay"
	"github.com/xmtp-selfhosted/backend/cmd/stack"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/tests/chainstub"
)

// recordedAt lies within the lifetime of every recorded key package.
var recordedAt = time.Date(2026, 11, 29, 16, 0, 0, 0, time.UTC)

// What a client sends beside the recorded session, to be looked for later.
const (
	canary      = "canary-7f3a9c"
	canaryTrace = "00-c0ffeec0ffeec0ffeec0ffeec0ffee11-c0ffeec0ffee0011-01"
	alice       = "0x41bfbb381d9ed37188cc72249db4f2f3ef9bdc3b"
)

// outcome is everything that the backend told its operator.
type outcome struct {
	plan    *replay.Plan
	scraped string
	tempo   *tempo
	logs    string
}

// TestTelemetry makes one run for all that is to be asserted of it.
func TestTelemetry(t *testing.T) {
	seen := run(t)
	t.Run("every metric is recorded by its roles", func(t *testing.T) { everyMetric(t, seen) })
	t.Run("queries of dashboards, alerts and documents use what exists", func(t *testing.T) { queriesUseWhatExists(t, seen) })
	t.Run("a publish and its delivery are one trace", func(t *testing.T) { oneTrace(t, seen) })
	t.Run("a call has one completion line with its trace", func(t *testing.T) { completionLines(t, seen) })
	t.Run("nothing of a user is exported", func(t *testing.T) { nothingOfAUser(t, seen) })
}

func run(t *testing.T) *outcome {
	t.Helper()
	seen := &outcome{}
	received, address := startTempo(t)
	seen.tempo = received
	endpoint, stopCollector := startCollector(t, address)
	cfg := telemetry.Config{OTLPEndpoint: endpoint, MetricsListen: "127.0.0.1:0", TraceRatio: 1, LogLevel: "debug", LogFormat: "json"}
	logs := logtest.New()
	observed, err := telemetry.Start(t.Context(), cfg, "1.2.3-test", telemetry.Options{
		Logger: telemetry.NewLogger(cfg, logs), ExportInterval: 200 * time.Millisecond,
	})
	require.NoError(t, err)
	chains := chainstub.Start(t)
	dir, err := os.MkdirTemp("", "xmtp-telemetry-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) // PostgreSQL's own user enters it
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s, err := stack.Start(t.Context(), stack.Options{
		Dir: dir, Environment: map[string]string{"XMTP_CHAINS": chains.Environment()},
		Settings: map[string]string{"fsync": "off"}, Clock: func() time.Time { return recordedAt },
		Logger: observed.Logger(), Telemetry: observed,
	})
	require.NoError(t, err)
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			require.NoError(t, s.Stop())
		}
	}
	t.Cleanup(stop)

	connection, err := grpc.NewClient(s.Endpoints.Gateway, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	seen.plan, err = replay.Recorded()
	require.NoError(t, err)
	_, err = replay.Run(t.Context(), connection, seen.plan, replay.Options{DeliveryTimeout: time.Minute})
	require.NoError(t, err)
	misbehave(t, connection, s.Endpoints.Gateway)
	seen.scraped = awaitScrape(t, observed.MetricsAddress())
	stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, observed.Shutdown(ctx))
	stopCollector()
	seen.logs = logs.String()
	return seen
}

// misbehave makes calls of every other kind, among them wrong ones whose errors
// may speak of what was sent.
func misbehave(t *testing.T, connection *grpc.ClientConn, gateway string) {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-app-version", canary, "authorization", "Bearer "+canary,
		"traceparent", canaryTrace, "tracestate", "vendor="+canary, "x-request-id", canary)
	group := testkit.New(7).Group()
	queries := []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}}
	reader := backendv1.NewQueryServiceClient(connection)
	_, err := reader.Query(ctx, &backendv1.QueryRequest{Queries: queries})
	require.NoError(t, err)
	_, err = reader.Query(ctx, &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(canary)}}}})
	require.Error(t, err)
	_, err = reader.QueryNewest(ctx, &backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{{Topic: []byte(group.Topic())}}})
	require.NoError(t, err)
	_, err = backendv1.NewIdentityServiceClient(connection).GetInboxIds(ctx, &backendv1.GetInboxIdsRequest{
		Requests: []*backendv1.GetInboxIdsRequest_Request{{Identifier: alice, IdentifierKind: associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM}}})
	require.NoError(t, err)
	_, err = backendv1.NewPublishServiceClient(connection).Publish(ctx, &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{{}}})
	require.Error(t, err)
	require.Error(t, connection.Invoke(ctx, "/"+canary+".Service/"+canary, &backendv1.QueryRequest{}, &backendv1.QueryResponse{}))
	static, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := backendv1.NewSubscriptionServiceClient(connection).SubscribeStatic(static, &backendv1.SubscribeStaticRequest{Topics: queries})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+gateway+"/xmtp.backend.v1.ConfigurationService/GetConfiguration", strings.NewReader("{}"))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("traceparent", canaryTrace)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	_ = answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode)
}

// awaitScrape returns what Prometheus would read once the slowest metric, the
// lag that is measured every second, is there.
func awaitScrape(t *testing.T, address string) string {
	t.Helper()
	var text string
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		answer, err := http.Get("http://" + address + "/metrics")
		if !assert.NoError(c, err) {
			return
		}
		defer answer.Body.Close()
		read, err := io.ReadAll(answer.Body)
		assert.NoError(c, err)
		text = string(read)
		assert.Contains(c, text, `xmtp_replica_lag_seconds{role="streamer"`)
		assert.Contains(c, text, `xmtp_replica_lag_seconds{role="reader"`)
	}, 20*time.Second, 100*time.Millisecond)
	return text
}

// hasSeries says whether a metric of Prometheus has a value from a role.
func (o *outcome) hasSeries(name, role string) bool {
	return regexp.MustCompile(`(?m)^` + name + `(_bucket)?\{[^\n]*role="` + role + `"`).MatchString(o.scraped)
}

func everyMetric(t *testing.T, seen *outcome) {
	// A role of one binary makes no call of these kinds in this run.
	for _, d := range telemetry.Catalogue() {
		for _, role := range d.Roles {
			assert.True(t, seen.hasSeries(d.Name, role), "%s has no value from the %s", d.Name, role)
		}
		assert.True(t, seen.tempo.metrics[d.Name], "%s did not come through the collector", d.Name)
	}
	for _, line := range strings.Split(seen.scraped, "\n") {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "# TYPE "), " ")
		if strings.HasPrefix(line, "# TYPE xmtp_") || strings.HasPrefix(line, "# TYPE grpc_") {
			assert.True(t, describes(name), "%s is not in the catalogue", name)
		}
	}
	require.NotContains(t, seen.scraped, "otel_scope")
}

func describes(name string) bool {
	for _, d := range telemetry.Catalogue() {
		if d.Name == name {
			return true
		}
	}
	return false
}

// completionLines: the run is traced and logged at debug level, so every call
// has a line, and every line its trace.
func completionLines(t *testing.T, seen *outcome) {
	lines := 0
	for _, line := range strings.Split(seen.logs, "\n") {
		if strings.Contains(line, `"msg":"call"`) && strings.Contains(line, `PublishService/Publish`) && strings.Contains(line, `"role":"publisher"`) {
			lines++
			assert.Contains(t, line, `"trace_id":"`)
			assert.Contains(t, line, `"code":"`)
		}
	}
	spans := 0
	for _, s := range seen.tempo.spans {
		if s.role == telemetry.Publisher && s.GetName() == publishSpan {
			spans++
		}
	}
	require.Equal(t, len(seen.plan.Requests)+1, lines, "one line a call, the refused one included")
	require.Equal(t, lines, spans)
}

func nothingOfAUser(t *testing.T, seen *outcome) {
	secrets := map[string][]byte{
		"a header value, a topic or the name of a method": []byte(canary), "a client's trace": mustHex("c0ffeec0ffeec0ffeec0ffeec0ffee11"),
		"a client's span": mustHex("c0ffeec0ffee0011"), "an address": []byte(alice),
	}
	for _, request := range seen.plan.Requests {
		for _, item := range request {
			secrets["a topic"+hex.EncodeToString([]byte(item.Topic))] = []byte(item.Topic)[1:]
		}
	}
	require.Greater(t, len(secrets), 20)
	exported := append([][]byte{[]byte(seen.scraped), []byte(seen.logs)}, seen.tempo.exported...)
	all := bytes.Join(exported, []byte{0})
	for _, present := range []string{publishSpan, "xmtp_publish_envelopes", "trace_id"} {
		require.True(t, bytes.Contains(all, []byte(present)), "the search finds what is there")
	}
	for name, secret := range secrets {
		for form, encoded := range map[string][]byte{
			"as it is": secret, "in hex": []byte(hex.EncodeToString(secret)), "in base64": []byte(base64.StdEncoding.EncodeToString(secret)),
		} {
			assert.False(t, bytes.Contains(all, encoded), "%s was exported %s", name, form)
		}
	}
}

func mustHex(s string) []byte {
	decoded, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return decoded
}
