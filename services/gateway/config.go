package gateway

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/forward"
)

// Config is everything that a gateway is told at its start.
type Config struct {
	// Listen is the public address, for every protocol.
	Listen string `env:"GATEWAY_LISTEN" envDefault:":5050"`
	// Each endpoint is a gRPC target or a comma-separated list of host:port.
	PublisherEndpoint string `env:"PUBLISHER_ENDPOINT,required,notEmpty"`
	ReaderEndpoint    string `env:"READER_ENDPOINT,required,notEmpty"`
	StreamerEndpoint  string `env:"STREAMER_ENDPOINT,required,notEmpty"`

	Published PublishedConfig
	Limits    limit.Config
	Retention limit.Retention
	RPC       rpc.Config
	Forward   forward.Config
	Front     FrontConfig
	Telemetry telemetry.Config
}

// FrontConfig is how the public port meets its clients.
type FrontConfig struct {
	// HTTP2 is what serves the public port. With auto it is grpc-go's transport
	// for native gRPC and net/http for the rest; with http it is net/http for
	// everything, for proxies that mix both on a connection.
	HTTP2 string `env:"GATEWAY_HTTP2" envDefault:"auto"`
	// TLSCertFile and TLSKeyFile are PEM files; with both, the port is HTTPS.
	TLSCertFile string `env:"TLS_CERT_FILE"`
	TLSKeyFile  string `env:"TLS_KEY_FILE"`
	// CORSOrigins are the pages that may call: "*" or origins such as
	// https://app.example.org, which may hold one * each.
	CORSOrigins []string `env:"CORS_ORIGINS" envDefault:"*"`
	// Reflection tells clients such as grpcurl what methods there are.
	Reflection bool `env:"REFLECTION" envDefault:"true"`
	// Console serves a small page for people on /.
	Console bool `env:"CONSOLE" envDefault:"false"`
	// HeaderTimeout is how long a client may take for the headers of a request.
	HeaderTimeout time.Duration `env:"GATEWAY_HEADER_TIMEOUT" envDefault:"10s"`
	// BodyTimeout is how long the message of a request may take to arrive, and how
	// long a client may take nothing of an answer.
	BodyTimeout time.Duration `env:"GATEWAY_BODY_TIMEOUT" envDefault:"60s"`
	// MaxHeaderBytes bounds the headers of one request.
	MaxHeaderBytes int `env:"GATEWAY_MAX_HEADER_BYTES" envDefault:"16384"`
	// IdleTimeout is how long a connection without calls is kept.
	IdleTimeout time.Duration `env:"GATEWAY_IDLE_TIMEOUT" envDefault:"5m"`
	// MaxConnections bounds the open connections; more wait to be accepted.
	MaxConnections int `env:"GATEWAY_MAX_CONNECTIONS" envDefault:"10000"`
	// MaxConnectionsPerAddress bounds those of one client address (in IPv6 of one
	// network of 64 bits); more are closed. 0 is three quarters of all. Where
	// everybody comes through one proxy or address translation, set it to all: then
	// one address may have all calls, too.
	MaxConnectionsPerAddress int `env:"GATEWAY_MAX_CONNECTIONS_PER_ADDRESS" envDefault:"0"`
	// MaxCalls bounds the unary calls in progress; more are UNAVAILABLE. When few
	// are left, a connection with many calls is refused before one with few.
	MaxCalls int `env:"GATEWAY_MAX_CALLS" envDefault:"2048"`
	// MaxStreams bounds the open streams in the same way.
	MaxStreams int `env:"GATEWAY_MAX_STREAMS" envDefault:"10000"`
}

// perAddress is the bound of connections of one address.
func (c FrontConfig) perAddress() int {
	if c.MaxConnectionsPerAddress > 0 {
		return c.MaxConnectionsPerAddress
	}
	return max(1, c.MaxConnections*3/4)
}

// The values of FrontConfig.HTTP2.
const (
	HTTP2Auto = "auto"
	HTTP2HTTP = "http"
)

// calls bounds the calls in progress. Behind a proxy that mixes protocols all of them
// come from its address.
func (c FrontConfig) calls() *caller.Calls {
	return caller.NewCalls(c.MaxCalls, c.MaxStreams, c.HTTP2 == HTTP2HTTP || c.MaxConnectionsPerAddress >= c.MaxConnections)
}

// Validate names each variable that is out of range.
func (c FrontConfig) Validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.HTTP2 != HTTP2Auto && c.HTTP2 != HTTP2HTTP {
		refuse("XMTP_GATEWAY_HTTP2 is %q, expected %q or %q", c.HTTP2, HTTP2Auto, HTTP2HTTP)
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		refuse("XMTP_TLS_CERT_FILE and XMTP_TLS_KEY_FILE: expected both or none")
	}
	for _, origin := range c.CORSOrigins {
		if origin != "*" && !strings.Contains(origin, "://") {
			refuse("XMTP_CORS_ORIGINS holds %q, expected * or an origin such as https://app.example.org", origin)
		}
	}
	for name, timeout := range map[string]time.Duration{"HEADER": c.HeaderTimeout, "IDLE": c.IdleTimeout, "BODY": c.BodyTimeout} {
		if timeout <= 0 {
			refuse("XMTP_GATEWAY_%s_TIMEOUT is %v, expected more than 0s", name, timeout)
		}
	}
	if c.MaxHeaderBytes < 1024 || c.MaxHeaderBytes > 48<<10 {
		refuse("XMTP_GATEWAY_MAX_HEADER_BYTES is %d, expected between 1024 and %d", c.MaxHeaderBytes, 48<<10)
	}
	for name, most := range map[string]int{"CONNECTIONS": c.MaxConnections, "CALLS": c.MaxCalls, "STREAMS": c.MaxStreams} {
		if most < 1 {
			refuse("XMTP_GATEWAY_MAX_%s is %d, expected at least 1", name, most)
		}
	}
	if c.MaxConnectionsPerAddress < 0 {
		refuse("XMTP_GATEWAY_MAX_CONNECTIONS_PER_ADDRESS is %d, expected at least 0", c.MaxConnectionsPerAddress)
	}
	return errors.Join(errs...)
}

// Validate names each variable that is out of range, all at once.
func (c Config) Validate() error {
	errs := []error{config.Join(c.Published, c.Limits, c.Retention, c.RPC, c.Forward, c.Front, c.Telemetry)}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("XMTP_GATEWAY_LISTEN is %q, expected host:port", c.Listen))
	}
	errs = append(errs,
		checkBudget("XMTP_GATEWAY_BODY_BUDGET_BYTES", c.Forward.BodyBudgetBytes, "XMTP_MAX_REQUEST_BYTES", int64(c.Limits.MaxRequestBytes)),
		checkBudget("XMTP_GATEWAY_ANSWER_BUDGET_BYTES", c.Forward.AnswerBudgetBytes, "XMTP_MAX_RESPONSE_BYTES", int64(c.Limits.MaxResponseBytes)))
	return errors.Join(append(errs,
		checkEndpoint("XMTP_PUBLISHER_ENDPOINT", c.PublisherEndpoint),
		checkEndpoint("XMTP_READER_ENDPOINT", c.ReaderEndpoint),
		checkEndpoint("XMTP_STREAMER_ENDPOINT", c.StreamerEndpoint),
	)...)
}

// checkBudget refuses a budget in which one long message has no room, compressed and
// inflated.
func checkBudget(variable string, bytes int64, limit string, longest int64) error {
	if bytes < 4*longest {
		return fmt.Errorf("%s is %d, expected at least %d: four times %s", variable, bytes, 4*longest, limit)
	}
	return nil
}

func checkEndpoint(variable, endpoint string) error {
	if strings.Contains(endpoint, "://") {
		return nil
	}
	for address := range strings.SplitSeq(endpoint, ",") {
		if host, port, err := net.SplitHostPort(strings.TrimSpace(address)); err != nil || host == "" || port == "" {
			return fmt.Errorf("%s holds %q, expected host:port or a gRPC target such as dns:///reader:5052", variable, address)
		}
	}
	return nil
}
