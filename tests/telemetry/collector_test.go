package telemetry_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/nopexporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// startCollector runs the OpenTelemetry Collector with the configuration that
// docker-compose gives it. Only addresses are others: what compose sends to Tempo
// goes to tempo, and metrics go there, too, so that a test sees them. The
// returned function ends the collector once it has passed on all that it holds.
func startCollector(t *testing.T, tempo string) (endpoint string, stop func()) {
	t.Helper()
	port, err := freeport.Pick()
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	collector, err := otelcol.NewCollector(otelcol.CollectorSettings{
		BuildInfo:               component.NewDefaultBuildInfo(),
		Factories:               collectorParts,
		DisableGracefulShutdown: true, // the signals are the test's
		SkipSettingGRPCLogger:   true,
		LoggingOptions:          []zap.Option{zap.IncreaseLevel(zapcore.WarnLevel)},
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs: []string{
				"file:../../deploy/dev/collector.yaml",
				"yaml:receivers::otlp::protocols::grpc::endpoint: " + address,
				"yaml:exporters::otlp/tempo::endpoint: " + strings.TrimPrefix(tempo, "http://"),
				"yaml:service::pipelines::metrics::exporters: [otlp/tempo]",
				"yaml:service::telemetry::metrics::level: none", // it would be served on a fixed port
			},
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory(), yamlprovider.NewFactory()},
		}},
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- collector.Run(context.Background()) }() // Shutdown ends it
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			collector.Shutdown()
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil && collector.GetState() == otelcol.StateRunning
	}, time.Minute, 20*time.Millisecond, "the collector does not run")
	return "http://" + address, stop
}

// collectorParts are what the configuration is made of.
func collectorParts() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	processors, err := otelcol.MakeFactoryMap[processor.Factory](batchprocessor.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](otlpexporter.NewFactory(), nopexporter.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	return otelcol.Factories{Receivers: receivers, Processors: processors, Exporters: exporters, Telemetry: otelconftelemetry.NewFactory()}, nil
}

// TestComposeRunsThisCollector: what is tested here is what compose starts.
func TestComposeRunsThisCollector(t *testing.T) {
	modules, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`collector/otelcol v(\S+)`).FindSubmatch(modules)
	require.NotNil(t, version)
	compose, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	require.Contains(t, string(compose), "image: otel/opentelemetry-collector-contrib:"+string(version[1])+"\n")
}
