package notice

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Listener is what a receiver tells. All calls come one at a time, and delay
// what follows while they last.
type Listener struct {
	// Notice takes a notice in the order of arrival. The envelope may be kept; it
	// must not change.
	Notice func(Notice)
	// Connected reports that notices arrive from now on (true), or that they are
	// missed until further notice (false). It may be nil.
	Connected func(bool)
}

var receivedMalformed = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", "malformed")))

// Pending notices of a listener that is slow; beyond these NATS drops them.
const (
	pendingNotices = 512 << 10
	pendingBytes   = 128 << 20
)

// Receiver hears the notices of one backend, all shards. They may be lost,
// repeated and reordered, and be of another lineage: what to make of them is up
// to the listener.
type Receiver struct {
	cfg      Config
	logger   *slog.Logger
	metrics  *telemetry.Metrics
	listener Listener
}

// NewReceiver prepares a receiver; Run connects.
func NewReceiver(cfg Config, logger *slog.Logger, metrics *telemetry.Metrics, listener Listener) *Receiver {
	if listener.Connected == nil {
		listener.Connected = func(bool) {}
	}
	return &Receiver{cfg: cfg, logger: logger, metrics: metrics, listener: listener}
}

// Run receives until ctx ends. The bus may be away at the start and at any time
// later. No call of the listener runs any more when Run has returned.
func (r *Receiver) Run(ctx context.Context) error {
	// The client calls its handlers on several goroutines; one loop calls the
	// listener.
	messages := make(chan *nats.Msg, 1024)
	states := make(chan bool, 16)
	closed := make(chan struct{})
	report := func(up bool) {
		select {
		case states <- up:
		case <-closed:
		}
	}
	conn, err := connect(ctx, r.cfg, r.logger, r.metrics, func(*nats.Conn) { report(true) }, func() { report(false) })
	if err != nil {
		close(closed)
		return err
	}
	defer conn.Close()
	defer close(closed)
	subscription, err := conn.Subscribe(subjectPrefix(r.cfg.Identifier)+"*", func(message *nats.Msg) {
		select {
		case messages <- message:
		case <-closed:
		}
	})
	if err == nil {
		err = subscription.SetPendingLimits(pendingNotices, pendingBytes)
	}
	if err != nil {
		return fmt.Errorf("subscribe to commit notices: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case up := <-states:
			if !up || r.subscribed(ctx, conn) {
				r.listener.Connected(up)
			}
		case message := <-messages:
			r.hear(ctx, message.Data)
		}
	}
}

// subscribed waits until the server has read the subscription, which the client
// only buffers, and sends again by itself before it reports a connection. It says
// no when the connection is gone: its loss or the next one is reported, too.
func (r *Receiver) subscribed(ctx context.Context, conn *nats.Conn) bool {
	for ctx.Err() == nil && conn.IsConnected() {
		bounded, cancel := context.WithTimeout(ctx, r.cfg.WriteTimeout)
		err := conn.FlushWithContext(bounded)
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

func (r *Receiver) hear(ctx context.Context, wire []byte) {
	heard, err := Parse(wire)
	if err != nil {
		r.metrics.NoticesReceived.Add(ctx, 1, receivedMalformed)
		return
	}
	r.listener.Notice(heard)
}
