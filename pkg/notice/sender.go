package notice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Stored is an envelope that was committed and is to be announced.
type Stored struct {
	Meta    envelope.Meta
	Payload []byte
	// Previous is as in Notice.
	Previous topic.SequenceID
	Lineage  Lineage
	Trace    Trace
}

// Why a notice was not sent.
var (
	droppedQueue    = reason("queue_full")
	droppedBus      = reason("disconnected")
	droppedTooLarge = reason("too_large")
	droppedWrite    = reason("write_failed")
)

func reason(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", name)))
}

// Sender announces stored envelopes. It is best effort: what the bus does not
// take is dropped and counted, and no caller ever waits for the bus.
type Sender struct {
	cfg      Config
	subjects []string
	logger   *slog.Logger
	metrics  *telemetry.Metrics
	// inline is the longest envelope that fits what the server accepts now.
	inline atomic.Int64

	mu     sync.Mutex
	queue  []Stored
	spare  []Stored // an empty queue to swap in
	bytes  int      // of what is queued and what is being sent
	wakeUp chan struct{}

	wire []byte // of the notice being sent; Run's own
}

// NewSender prepares a sender; Run connects.
func NewSender(cfg Config, logger *slog.Logger, metrics *telemetry.Metrics) *Sender {
	s := &Sender{
		cfg:      cfg,
		subjects: subjects(cfg.Identifier),
		logger:   logger,
		metrics:  metrics,
		wakeUp:   make(chan struct{}, 1),
	}
	s.inline.Store(int64(cfg.InlineBytes))
	return s
}

// Queue takes notices of committed envelopes, in the order given, and returns at
// once. The payloads must not change afterwards. They are sent after the next Wake,
// so that who stored them is answered before the bus is served.
func (s *Sender) Queue(ctx context.Context, stored []Stored) {
	s.mu.Lock()
	accepted := 0
	for i := range stored {
		size := queuedSize(&stored[i])
		if s.bytes+size > s.cfg.QueueBytes {
			break // the newest are the ones to drop
		}
		s.bytes += size
		accepted++
	}
	s.queue = append(s.queue, stored[:accepted]...)
	s.mu.Unlock()
	if dropped := len(stored) - accepted; dropped > 0 {
		s.metrics.NoticesDropped.Add(ctx, int64(dropped), droppedQueue)
	}
}

// Wake has Run send what is queued. It never waits.
func (s *Sender) Wake() {
	select {
	case s.wakeUp <- struct{}{}:
	default:
	}
}

func queuedSize(stored *Stored) int { return HeaderLength + len(stored.Payload) }

// Run sends until ctx ends, and then what is queued, if the bus takes it within
// the time of one write. The bus may be away at the start and at any time later.
func (s *Sender) Run(ctx context.Context) error {
	conn, err := connect(ctx, s.cfg, s.logger, s.metrics, s.connected, func() {})
	if err != nil {
		return err
	}
	defer conn.Close()
	sending, cancel := graceful(ctx, s.cfg.WriteTimeout)
	defer cancel()
	for {
		select {
		case <-s.wakeUp:
			s.drain(sending, conn)
		case <-ctx.Done():
			s.drain(sending, conn)
			if conn.IsConnected() {
				_ = conn.FlushTimeout(s.cfg.WriteTimeout)
			}
			return nil
		}
	}
}

// graceful returns a context that ends some time after ctx.
func graceful(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(after):
			cancel()
		case <-later.Done():
		}
	})
	return later, func() {
		stop()
		cancel()
	}
}

// drain sends what is queued now; once ctx has ended it drops the rest.
func (s *Sender) drain(ctx context.Context, conn *nats.Conn) {
	batch := s.take()
	sent := 0
	for i := range batch {
		if ctx.Err() == nil && s.publish(ctx, conn, &batch[i]) {
			sent++
		}
		s.release(&batch[i])
	}
	s.metrics.NoticesSent.Add(ctx, int64(sent))
	clear(batch)
	s.mu.Lock()
	s.spare = batch[:0]
	s.mu.Unlock()
}

// take swaps the queue for an empty one.
func (s *Sender) take() []Stored {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.queue
	s.queue, s.spare = s.spare, nil
	return taken
}

func (s *Sender) release(stored *Stored) {
	s.mu.Lock()
	s.bytes -= queuedSize(stored)
	s.mu.Unlock()
}

// header encodes a notice without its envelope.
func (s *Sender) header(stored *Stored) []byte {
	return Append(s.wire[:0], &Notice{
		Topic:      stored.Meta.Topic,
		SequenceID: stored.Meta.SequenceID,
		Previous:   stored.Previous,
		Lineage:    stored.Lineage,
		Trace:      stored.Trace,
	})
}

// publish hands one notice to the client, which copies it.
func (s *Sender) publish(ctx context.Context, conn *nats.Conn, stored *Stored) bool {
	subject := s.subjects[shardOf(stored.Meta.Topic)]
	s.wire = s.header(stored)
	if envelope.ServerSize(&stored.Meta, stored.Payload) <= int(s.inline.Load()) {
		s.wire = envelope.AppendServer(s.wire, &stored.Meta, stored.Payload)
	}
	err := conn.Publish(subject, s.wire)
	if errors.Is(err, nats.ErrMaxPayload) { // another server than before
		s.wire = s.header(stored)
		err = conn.Publish(subject, s.wire)
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		s.metrics.NoticesDropped.Add(ctx, 1, droppedBus)
	case errors.Is(err, nats.ErrMaxPayload):
		s.metrics.NoticesDropped.Add(ctx, 1, droppedTooLarge)
	default:
		s.metrics.NoticesDropped.Add(ctx, 1, droppedWrite)
		// A write that was cut off leaves half a message on the connection.
		_ = conn.ForceReconnect()
	}
	return false
}

// connected looks at what the server accepts: a notice whose envelope does not
// fit goes without it.
func (s *Sender) connected(conn *nats.Conn) {
	inline, limit := int64(s.cfg.InlineBytes), conn.MaxPayload()
	if inline+HeaderLength > limit {
		s.logger.Warn("the bus takes shorter messages than a notice with its envelope may need, so notices go without envelopes",
			"max_payload", limit, "inline_bytes", inline)
		inline = 0
	}
	s.inline.Store(inline)
}

// connect returns at once; the connection is made and kept in the background.
func connect(ctx context.Context, cfg Config, logger *slog.Logger, metrics *telemetry.Metrics, up func(*nats.Conn), down func()) (*nats.Conn, error) {
	ctx = context.WithoutCancel(ctx)
	failing := false // the handlers run one after the other
	connected := func(is int64) {
		metrics.BusConnected.Record(ctx, is)
		failing = false
	}
	connected(0)
	options := []nats.Option{
		nats.Name("xmtp-backend"),
		nats.Timeout(cfg.ConnectTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // credentials may be changed here first, or there
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			if !failing {
				failing = true
				logger.Warn("the bus cannot be reached, trying again until it can", "error", err)
			}
		}),
		nats.ReconnectWait(cfg.ReconnectWait),
		nats.ReconnectJitter(cfg.ReconnectWait/2, cfg.ReconnectWait/2),
		nats.ReconnectBufSize(-1), // what cannot be sent now is dropped: the sweep is faster than a replay
		nats.FlusherTimeout(cfg.WriteTimeout),
		nats.PingInterval(5 * cfg.WriteTimeout),
		nats.MaxPingsOutstanding(2),
		nats.ConnectHandler(func(conn *nats.Conn) {
			logger.Info("connected to the bus")
			connected(1)
			up(conn)
		}),
		nats.ReconnectHandler(func(conn *nats.Conn) {
			logger.Info("connected to the bus again")
			connected(1)
			up(conn)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				logger.Warn("lost the bus", "error", err)
			}
			connected(0)
			down()
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			logger.Warn("the bus reported a problem", "error", err)
		}),
	}
	conn, err := nats.Connect(cfg.URL.Reveal(), options...)
	if err != nil {
		// Only options that cannot work end up here; the text may hold the URL.
		return nil, fmt.Errorf("connect to the bus: %w", errBadOptions)
	}
	return conn, nil
}

var errBadOptions = errors.New("the NATS URL or its credentials cannot be used")
