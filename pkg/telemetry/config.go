package telemetry

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
)

// Config is where a process sends its telemetry. All of it may be off.
type Config struct {
	// OTLPEndpoint is an OpenTelemetry collector that takes OTLP over gRPC, as
	// http://host:4317 or https://host:4317. Empty: no traces, and metrics are
	// only served.
	OTLPEndpoint string `env:"OTLP_ENDPOINT"`
	// MetricsListen is where Prometheus finds /metrics, such as :9464. Empty: it
	// is not served.
	MetricsListen string `env:"METRICS_LISTEN"`
	// TraceRatio is the part of the calls that are traced, from 0 to 1. The
	// gateway decides for each call; the roles follow it.
	TraceRatio float64 `env:"TRACE_RATIO" envDefault:"0.01"`
	// LogLevel is the least that is logged: debug, info, warn or error. Each call
	// that ends well is a line at debug, one that failed on our side at warn or
	// error.
	LogLevel string `env:"LOG_LEVEL" envDefault:"info"`
	// LogFormat is how a line is written: json, or text for people.
	LogFormat string `env:"LOG_FORMAT" envDefault:"json"`
}

// The values of Config.LogFormat.
const (
	formatJSON = "json"
	formatText = "text"
)

// Validate names each variable that is wrong.
func (c Config) Validate() error {
	var errs []error
	if endpoint, err := url.Parse(c.OTLPEndpoint); c.OTLPEndpoint != "" &&
		(err != nil || endpoint.Host == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https") {
		errs = append(errs, fmt.Errorf("XMTP_OTLP_ENDPOINT is %q, expected a URL such as http://collector:4317", c.OTLPEndpoint))
	}
	if c.MetricsListen != "" {
		if _, _, err := net.SplitHostPort(c.MetricsListen); err != nil {
			errs = append(errs, fmt.Errorf("XMTP_METRICS_LISTEN is %q, expected host:port or nothing", c.MetricsListen))
		}
	}
	if !(c.TraceRatio >= 0 && c.TraceRatio <= 1) { // also not NaN
		errs = append(errs, fmt.Errorf("XMTP_TRACE_RATIO is %v, expected 0 to 1", c.TraceRatio))
	}
	if _, err := level(c.LogLevel); err != nil {
		errs = append(errs, err)
	}
	if c.LogFormat != "" && c.LogFormat != formatJSON && c.LogFormat != formatText {
		errs = append(errs, fmt.Errorf("XMTP_LOG_FORMAT is %q, expected %s or %s", c.LogFormat, formatJSON, formatText))
	}
	return errors.Join(errs...)
}

func level(name string) (slog.Level, error) {
	switch name {
	case "":
		return slog.LevelInfo, nil
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("XMTP_LOG_LEVEL is %q, expected debug, info, warn or error", name)
}
