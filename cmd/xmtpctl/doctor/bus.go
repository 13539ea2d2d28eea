package doctor

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
)

// noticeOverhead is room for what a notice says beside its envelope.
const noticeOverhead = 4096

// bus connects as a role does and waits for one round trip. It subscribes to
// nothing and publishes nothing.
func (d *doctor) bus(ctx context.Context) {
	const area = "bus"
	url := d.environment["XMTP_NATS_URL"]
	if url == "" {
		return // a finding of the configuration
	}
	connection, err := nats.Connect(url, nats.Name("xmtpctl doctor"), nats.Timeout(d.patience), nats.NoReconnect())
	if err != nil {
		d.bad(area, "is NATS up, and do host, port and credentials of XMTP_NATS_URL hold from here? Until then the sweep delivers, later", "cannot connect: %s", d.without(err))
		return
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	begun := time.Now()
	if err := connection.FlushWithContext(ctx); err != nil {
		d.bad(area, "look at the load and the log of NATS", "connected, but it does not answer: %s", d.without(err))
		return
	}
	d.good(area, "NATS %s answers in %v", connection.ConnectedServerVersion(), time.Since(begun).Round(10*time.Microsecond))
	if settings, err := config.LoadFrom[notice.Config](d.environment); err == nil {
		if least := int64(settings.InlineBytes + noticeOverhead); connection.MaxPayload() < least {
			d.warn(area, "raise max_payload of NATS, or lower XMTP_NOTICE_INLINE_BYTES", "max_payload is %d, below XMTP_NOTICE_INLINE_BYTES: notices go without their envelopes, and streams read the database", connection.MaxPayload())
		}
	}
}
