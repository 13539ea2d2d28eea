package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Telemetry is the telemetry of a process. Nothing that it does makes a call
// wait: what a collector does not take is dropped.
type Telemetry struct {
	cfg      Config
	version  string
	logger   *slog.Logger
	registry *prometheus.Registry
	served   net.Listener // nil when metrics are not served
	server   *http.Server
	exported time.Duration

	mu    sync.Mutex
	roles map[string]*role
}

// role is the providers of one role.
type role struct {
	metrics *Metrics
	meters  *sdkmetric.MeterProvider
	tracers *sdktrace.TracerProvider // nil without tracing
}

// Options change what Start makes; the zero value is right for a program.
type Options struct {
	// Logger replaces the one that writes to standard error.
	Logger *slog.Logger
	// ExportInterval is the time between two exports; 0 is 15 s for metrics and
	// 5 s for spans.
	ExportInterval time.Duration
}

// headerTimeout bounds a request for metrics.
const headerTimeout = 5 * time.Second

// Start begins to serve metrics, if they are to be served. Collectors are
// reached in the background, now and whenever they come back. An error is a port
// that cannot be used. Shutdown ends everything.
func Start(ctx context.Context, cfg Config, version string, options Options) (*Telemetry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if options.Logger == nil {
		options.Logger = NewLogger(cfg, os.Stderr)
	}
	t := &Telemetry{
		cfg: cfg, version: version, logger: options.Logger, exported: options.ExportInterval,
		registry: prometheus.NewRegistry(), roles: map[string]*role{},
	}
	t.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	otel.SetErrorHandler(&failures{logger: t.logger})
	if cfg.MetricsListen == "" {
		return t, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("listen on XMTP_METRICS_LISTEN: %w", err)
	}
	t.served = listener
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{}))
	t.server = &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	go func() { _ = t.server.Serve(listener) }() // ends with Shutdown
	return t, nil
}

// Logger is the process's logger.
func (t *Telemetry) Logger() *slog.Logger { return t.logger }

// MetricsAddress is where metrics are served, or empty.
func (t *Telemetry) MetricsAddress() string {
	if t.served == nil {
		return ""
	}
	return t.served.Addr().String()
}

// Metrics are the instruments of one role of this process, and its tracer. A
// role that starts again gets the same ones.
func (t *Telemetry) Metrics(ctx context.Context, name string) (*Metrics, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.roles[name]; known != nil {
		return known.metrics, nil
	}
	made, err := t.newRole(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("set telemetry up: %w", err)
	}
	t.roles[name] = made
	return made.metrics, nil
}

func (t *Telemetry) newRole(ctx context.Context, name string) (*role, error) {
	identity := resource.NewSchemaless(
		attribute.String("service.name", "xmtp-"+name),
		attribute.String("service.namespace", "xmtp"),
		attribute.String("service.version", t.version),
		attribute.String("role", name))
	made := &role{}
	var err error
	if made.meters, err = t.newMeters(ctx, identity); err != nil {
		return nil, err
	}
	var b *builder
	made.metrics, b = build(made.meters)
	if err := b.err(); err != nil {
		return nil, err
	}
	b.zero(ctx, name)
	info, err := b.meter.Int64Gauge(infoName, metric.WithDescription(infoMeaning))
	if err != nil {
		return nil, err
	}
	info.Record(ctx, 1, metric.WithAttributes(attribute.String("version", t.version)))
	if t.cfg.OTLPEndpoint == "" || t.cfg.TraceRatio == 0 {
		return made, nil
	}
	if made.tracers, err = t.newTracers(ctx, identity); err != nil {
		return nil, err
	}
	made.metrics.Tracer = made.tracers.Tracer(scope)
	return made, nil
}

// newMeters is the metrics of a role for Prometheus, with the role as a label,
// and for the collector.
func (t *Telemetry) newMeters(ctx context.Context, identity *resource.Resource) (*sdkmetric.MeterProvider, error) {
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(t.registry),
		otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo(),
		otelprometheus.WithResourceAsConstantLabels(attribute.NewAllowKeysFilter("role")))
	if err != nil {
		return nil, err
	}
	options := []sdkmetric.Option{sdkmetric.WithResource(identity), sdkmetric.WithReader(reader)}
	if t.cfg.OTLPEndpoint != "" {
		exporter, err := otlpmetricgrpc.New(ctx, otlpmetricgrpc.WithEndpointURL(t.cfg.OTLPEndpoint))
		if err != nil {
			return nil, err
		}
		options = append(options, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter,
			sdkmetric.WithInterval(t.interval(15*time.Second)))))
	}
	return sdkmetric.NewMeterProvider(options...), nil
}

// newTracers sends spans in batches from a bounded queue; what does not fit is
// dropped.
func (t *Telemetry) newTracers(ctx context.Context, identity *resource.Resource) (*sdktrace.TracerProvider, error) {
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(t.cfg.OTLPEndpoint))
	if err != nil {
		return nil, err
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithResource(identity),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(t.cfg.TraceRatio))),
		sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(t.interval(5*time.Second)))), nil
}

func (t *Telemetry) interval(usual time.Duration) time.Duration {
	if t.exported > 0 {
		return t.exported
	}
	return usual
}

// Shutdown sends what is left and ends everything, within the time of ctx. Its
// error is what could not be sent; it is no reason for a process to fail.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	t.mu.Lock()
	roles := t.roles
	t.roles = map[string]*role{}
	t.mu.Unlock()
	var wait sync.WaitGroup
	errs := make(chan error, 2*len(roles))
	for _, r := range roles {
		wait.Go(func() { errs <- r.meters.Shutdown(ctx) })
		if r.tracers != nil {
			wait.Go(func() { errs <- r.tracers.Shutdown(ctx) })
		}
	}
	wait.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	if t.server != nil {
		all = append(all, t.server.Close())
	}
	return errors.Join(all...)
}

// closeTimeout is what a process that ends gives its collector.
const closeTimeout = 3 * time.Second

// Close is Shutdown at the end of a process, whose ctx has ended already: it
// takes a few seconds at most.
func (t *Telemetry) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := t.Shutdown(ctx); err != nil {
		t.logger.Warn("the last telemetry was not sent", "cause", err.Error())
	}
}

// failures logs what the exporters report, at most once a minute: a collector
// that is away fails each export.
type failures struct {
	logger *slog.Logger
	mu     sync.Mutex
	last   time.Time
}

// Handle implements otel.ErrorHandler.
func (f *failures) Handle(err error) {
	f.mu.Lock()
	due := time.Since(f.last) >= time.Minute
	if due {
		f.last = time.Now()
	}
	f.mu.Unlock()
	if due {
		f.logger.Warn("telemetry was not sent; serving goes on without", "cause", err.Error())
	}
}
