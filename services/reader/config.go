package reader

import (
	"errors"
	"fmt"
	"net"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/wallet"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/database"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/identity"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/query"
)

// Config is everything that a reader is told at its start.
type Config struct {
	// Listen is where the gateway finds the role.
	Listen string `env:"READER_LISTEN" envDefault:":5052"`
	// PrimaryURL serves Query. A standby is refused; of several hosts, the primary
	// is taken.
	PrimaryURL config.Secret `env:"PRIMARY_URL,required,notEmpty"`
	// ReplicaURL serves the other reads: the first that is up of a
	// comma-separated list, each naming one server instance. Without any, the
	// primary does.
	ReplicaURL []config.Secret `env:"REPLICA_URL"`
	// PrimaryFallback is how many reads at a time may go to the primary instead while
	// none of ReplicaURL can be reached. With 0 they fail.
	PrimaryFallback int `env:"READER_PRIMARY_FALLBACK" envDefault:"8"`
	// SCWConcurrency is how many signatures of one request are verified at a
	// time.
	SCWConcurrency int `env:"SCW_CONCURRENCY" envDefault:"8"`
	// ResponseBytes bounds the responses that are being read, put together or not
	// taken yet. Those beyond it wait.
	ResponseBytes int64 `env:"READER_RESPONSE_BYTES" envDefault:"402653184"`
	// RequestBytes bounds the requests that arrive or are being answered. Those beyond
	// it wait.
	RequestBytes int64 `env:"READER_REQUEST_BYTES" envDefault:"134217728"`
	// VerificationBytes bounds the memory of the signatures that are being verified.
	// Those beyond it wait.
	VerificationBytes int64 `env:"READER_VERIFICATION_BYTES" envDefault:"33554432"`

	Limits   limit.Config
	RPC      rpc.Config
	Pool     store.PoolConfig
	Database database.Config
	Wallet   wallet.Config

	Telemetry telemetry.Config
}

// Validate names each variable that is out of range, all at once.
func (c Config) Validate() error {
	errs := []error{config.Join(c.Limits, c.RPC, c.Pool, c.Database, c.Wallet, c.Telemetry)}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("XMTP_READER_LISTEN is %q, expected host:port", c.Listen))
	}
	errs = append(errs, c.PrimaryURL.CheckURL("PRIMARY_URL", "postgres", "postgresql"))
	for _, url := range c.ReplicaURL {
		errs = append(errs, url.CheckURL("REPLICA_URL", "postgres", "postgresql"))
	}
	if c.PrimaryFallback < 0 {
		errs = append(errs, fmt.Errorf("XMTP_READER_PRIMARY_FALLBACK is %d, expected at least 0", c.PrimaryFallback))
	}
	if c.SCWConcurrency < 1 {
		errs = append(errs, fmt.Errorf("XMTP_SCW_CONCURRENCY is %d, expected at least 1", c.SCWConcurrency))
	}
	for _, b := range []struct {
		name  string
		total int64
		least int64 // for the largest of what the limit allows
		limit string
	}{
		{"READER_RESPONSE_BYTES", c.ResponseBytes, query.Room(int(c.Limits.MaxResponseBytes), c.Limits), "MAX_RESPONSE_BYTES"},
		{"READER_REQUEST_BYTES", c.RequestBytes, int64(c.Limits.MaxRequestBytes) + rpc.ArrivalStep, "MAX_REQUEST_BYTES"},
		{"READER_VERIFICATION_BYTES", c.VerificationBytes, identity.VerificationRoom(c.Limits.MaxEnvelopeBytes), "MAX_ENVELOPE_BYTES"},
	} {
		if share := budget.New(b.total, 0).Share(); share < b.least {
			errs = append(errs, fmt.Errorf("XMTP_%s is %d, of which one call can have %d, expected at least %d for XMTP_%s", b.name, b.total, share, b.least, b.limit))
		}
	}
	return errors.Join(errs...)
}
