package notice

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/config"
)

// Config is how a role reaches the bus.
type Config struct {
	// URL of the NATS servers, comma-separated when there are several.
	URL config.Secret `env:"NATS_URL,required,notEmpty"`
	// Identifier names this backend. It is part of each subject, so that backends
	// can share a NATS cluster.
	Identifier string `env:"IDENTIFIER,required,notEmpty"`
	// InlineBytes is the longest ServerEnvelope that a notice carries. Longer
	// ones are read from the database.
	InlineBytes int `env:"NOTICE_INLINE_BYTES" envDefault:"65536"`
	// QueueBytes bounds the notices that wait for the bus. When it is full the
	// newest are dropped.
	QueueBytes int `env:"NOTICE_QUEUE_BYTES" envDefault:"67108864"`
	// ConnectTimeout bounds one attempt to connect.
	ConnectTimeout time.Duration `env:"NATS_CONNECT_TIMEOUT" envDefault:"2s"`
	// ReconnectWait is the pause between attempts.
	ReconnectWait time.Duration `env:"NATS_RECONNECT_WAIT" envDefault:"500ms"`
	// WriteTimeout bounds one write to the bus: a server that takes no byte for
	// so long is left for a new connection.
	WriteTimeout time.Duration `env:"NATS_WRITE_TIMEOUT" envDefault:"2s"`
}

// maxIdentifierBytes is that of the configuration that clients read.
const maxIdentifierBytes = 256

// Validate names each variable that is wrong.
func (c Config) Validate() error {
	var errs []error
	for _, server := range strings.Split(c.URL.Reveal(), ",") {
		if err := config.Secret(strings.TrimSpace(server)).CheckURL("NATS_URL", "nats", "tls", "ws", "wss"); err != nil {
			errs = append(errs, err)
			break
		}
	}
	if c.Identifier == "" || len(c.Identifier) > maxIdentifierBytes {
		errs = append(errs, fmt.Errorf("XMTP_IDENTIFIER has %d bytes, expected 1 to %d", len(c.Identifier), maxIdentifierBytes))
	}
	if c.InlineBytes < 0 {
		errs = append(errs, fmt.Errorf("XMTP_NOTICE_INLINE_BYTES is %d, expected at least 0", c.InlineBytes))
	}
	if c.QueueBytes < 1 {
		errs = append(errs, fmt.Errorf("XMTP_NOTICE_QUEUE_BYTES is %d, expected at least 1", c.QueueBytes))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"NATS_CONNECT_TIMEOUT", c.ConnectTimeout},
		{"NATS_RECONNECT_WAIT", c.ReconnectWait},
		{"NATS_WRITE_TIMEOUT", c.WriteTimeout},
	} {
		if d.value < time.Millisecond {
			errs = append(errs, fmt.Errorf("XMTP_%s is %v, expected at least 1ms", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}
