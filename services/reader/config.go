package reader

import (
	"errors"
	"fmt"
	"net"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/wallet"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/database"
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
	// SCWConcurrency is how many signatures of one request are verified at a
	// time.
	SCWConcurrency int `env:"SCW_CONCURRENCY" envDefault:"8"`

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
	if c.SCWConcurrency < 1 {
		errs = append(errs, fmt.Errorf("XMTP_SCW_CONCURRENCY is %d, expected at least 1", c.SCWConcurrency))
	}
	return errors.Join(errs...)
}
