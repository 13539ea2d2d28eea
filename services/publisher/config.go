package publisher

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/wallet"
)

// Config is the configuration of a publisher. Every variable has the prefix
// XMTP_.
type Config struct {
	// Listen is where the gateway finds the role.
	Listen string `env:"PUBLISHER_LISTEN" envDefault:":5051"`
	// PrimaryURL is the database that is written to.
	PrimaryURL config.Secret `env:"PRIMARY_URL,required,notEmpty"`
	// Migrate applies missing migrations at the start.
	Migrate bool `env:"MIGRATE" envDefault:"true"`
	// GCPercent is Go's GOGC for a process that is a publisher alone: what is
	// live is little, so collecting seldom costs little memory.
	GCPercent int `env:"PUBLISHER_GC_PERCENT" envDefault:"400"`

	Limits    limit.Config
	Retention limit.Retention
	RPC       rpc.Config
	Pool      store.PoolConfig
	Notice    notice.Config
	Wallet    wallet.Config
	Group     GroupConfig
	Telemetry telemetry.Config
}

// GroupConfig bounds what shares a transaction and what waits for one.
type GroupConfig struct {
	// MaxInFlight is how many shared transactions run at a time.
	MaxInFlight int `env:"PUBLISH_MAX_IN_FLIGHT" envDefault:"2"`
	// FillRows is how many rows have to wait before one starts beside another: few
	// large groups cost less than many small ones.
	FillRows int `env:"PUBLISH_FILL_ROWS" envDefault:"32"`
	// Patience is how long a shared transaction may take before another starts beside
	// it with fewer rows than that.
	Patience time.Duration `env:"PUBLISH_PATIENCE" envDefault:"10ms"`
	// MaxRows and MaxBytes bound one shared transaction.
	MaxRows  int `env:"PUBLISH_GROUP_ROWS"  envDefault:"256"`
	MaxBytes int `env:"PUBLISH_GROUP_BYTES" envDefault:"4194304"`
	// MaxWaiting is how many requests may wait for a transaction.
	MaxWaiting int `env:"PUBLISH_MAX_WAITING" envDefault:"10000"`
	// MemoryBytes bounds the memory that requests in work are reckoned to take, beside
	// 256 MiB for what is decoded and for the histories of inboxes.
	MemoryBytes int64 `env:"PUBLISH_MEMORY_BYTES" envDefault:"1073741824"`
}

// Validate names each variable that is out of range.
func (c GroupConfig) Validate() error {
	var errs []error
	for _, positive := range []struct {
		name  string
		value int64
	}{
		{"PUBLISH_MAX_IN_FLIGHT", int64(c.MaxInFlight)},
		{"PUBLISH_FILL_ROWS", int64(c.FillRows)},
		{"PUBLISH_GROUP_ROWS", int64(c.MaxRows)},
		{"PUBLISH_GROUP_BYTES", int64(c.MaxBytes)},
		{"PUBLISH_MAX_WAITING", int64(c.MaxWaiting)},
		{"PUBLISH_MEMORY_BYTES", c.MemoryBytes},
	} {
		if positive.value < 1 {
			errs = append(errs, fmt.Errorf("XMTP_%s is %d, expected at least 1", positive.name, positive.value))
		}
	}
	if c.Patience < 1 {
		errs = append(errs, fmt.Errorf("XMTP_PUBLISH_PATIENCE is %v, expected more than 0s", c.Patience))
	}
	return errors.Join(errs...)
}

// reservedConns are the connections beside those of shared transactions and of
// requests that run alone: one for identity updates, and for histories and
// checks of health.
const reservedConns = 4

// minConns is the smallest pool that a publisher works with: one connection is
// left for a request that runs alone.
func (c Config) minConns() int { return c.Group.MaxInFlight + reservedConns + 1 }

// Validate checks every part and what they have to do with each other.
func (c Config) Validate() error {
	errs := []error{
		config.Join(c.Limits, c.Retention, c.RPC, c.Pool, c.Notice, c.Wallet, c.Group, c.Telemetry),
		c.PrimaryURL.CheckURL("PRIMARY_URL", "postgres", "postgresql"),
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("XMTP_PUBLISHER_LISTEN is %q, expected host:port", c.Listen))
	}
	if c.GCPercent < 1 {
		errs = append(errs, fmt.Errorf("XMTP_PUBLISHER_GC_PERCENT is %d, expected at least 1", c.GCPercent))
	}
	if int(c.Pool.MaxConns) < c.minConns() {
		errs = append(errs, fmt.Errorf("XMTP_DB_MAX_CONNS is %d, expected at least %d: XMTP_PUBLISH_MAX_IN_FLIGHT and %d more",
			c.Pool.MaxConns, c.minConns(), reservedConns+1))
	}
	return errors.Join(errs...)
}
