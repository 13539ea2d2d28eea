// Package streamer is the role that delivers envelopes to open streams:
// Subscribe and SubscribeStatic. It reads from one database instance, hears
// commit notices from the bus, and writes nothing.
package streamer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/stream"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/sweep"
)

// Config is everything a streamer reads from its environment.
type Config struct {
	// Listen is where the gateway finds the role.
	Listen string `env:"STREAMER_LISTEN" envDefault:":5053"`
	// PrimaryURL serves streams when there is no replica.
	PrimaryURL config.Secret `env:"PRIMARY_URL"`
	// ReplicaURL is exactly one instance: never a balancer over several.
	ReplicaURL config.Secret `env:"REPLICA_URL"`

	Limits limit.Config
	RPC    rpc.Config
	Pool   store.PoolConfig
	Notice notice.Config
	Stream stream.Config
	Sweep  sweep.Config

	Telemetry telemetry.Config
}

// Validate checks ranges and relations; each error names its variable.
func (c Config) Validate() error {
	errs := []error{
		config.Join(c.Limits, c.RPC, c.Pool, c.Notice, c.Stream, c.Sweep, c.Telemetry),
		c.Stream.ValidateWith(c.Limits),
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("XMTP_STREAMER_LISTEN is %q, expected host:port", c.Listen))
	}
	if need := c.Stream.Connections(); int(c.Pool.MaxConns) < need {
		errs = append(errs, fmt.Errorf("XMTP_DB_MAX_CONNS is %d, expected at least %d: XMTP_STREAM_FETCHES, XMTP_STREAM_HEAD_READS and 2", c.Pool.MaxConns, need))
	}
	if c.ReplicaURL != "" {
		errs = append(errs, c.ReplicaURL.CheckURL("REPLICA_URL", "postgres", "postgresql"))
	}
	if strings.Contains(c.ReplicaURL.Reveal(), ",") {
		errs = append(errs, errors.New("XMTP_REPLICA_URL holds several servers, expected exactly one for a streamer"))
	}
	if c.PrimaryURL != "" || c.ReplicaURL == "" {
		errs = append(errs, c.PrimaryURL.CheckURL("PRIMARY_URL", "postgres", "postgresql"))
	}
	return errors.Join(errs...)
}

func (c Config) database() config.Secret {
	if c.ReplicaURL != "" {
		return c.ReplicaURL
	}
	return c.PrimaryURL
}

// Deps are what a streamer needs from its process.
type Deps struct {
	Listener net.Listener
	Logger   *slog.Logger
	Metrics  *telemetry.Metrics
}

// Streamer is the role. Run may be called once.
type Streamer struct {
	listener net.Listener
	database *store.InstancePool
	hub      *stream.Hub
	sweeper  *sweep.Sweeper
	receiver *notice.Receiver
	server   *rpc.Server
}

// ServiceName is the full name of the service on the wire.
const ServiceName = "xmtp.backend.v1.SubscriptionService"

// streamWindow is how much a client may send ahead of what is read of its stream: it
// is small since updates wait there while the stream cannot take the answer. One that
// is being read may be longer.
const streamWindow = 64 << 10

// New builds a streamer; it starts nothing and connects to nothing.
func New(cfg Config, deps Deps) (*Streamer, error) {
	if deps.Listener == nil || deps.Logger == nil || deps.Metrics == nil {
		return nil, errors.New("a streamer needs a listener, a logger and metrics")
	}
	database, err := store.OpenInstance(cfg.database(), cfg.Pool)
	if err != nil {
		return nil, err
	}
	database.Measure(deps.Metrics)
	s := &Streamer{listener: stream.Watch(deps.Listener), database: database}
	s.hub = stream.NewHub(cfg.Stream, cfg.Limits, stream.Deps{
		Database: database,
		Logger:   deps.Logger,
		Meter:    stream.NewMeter(deps.Metrics),
	})
	s.server = rpc.NewServer(cfg.RPC, rpc.ServerDeps{
		Metrics:         deps.Metrics,
		Logger:          deps.Logger,
		MaxRequestBytes: int(cfg.Limits.MaxRequestBytes),
		Options:         []grpc.ServerOption{grpc.StaticStreamWindowSize(streamWindow)},
	}, rpc.Service{Name: ServiceName, Methods: []rpc.Method{
		{Name: "Subscribe", Stream: s.hub.Subscribe, ClientStreams: true},
		{Name: "SubscribeStatic", Stream: s.hub.SubscribeStatic},
	}})
	s.sweeper = sweep.New(cfg.Sweep, sweep.Deps{
		Instance: database,
		Hub:      s.hub,
		Metrics:  deps.Metrics,
		Logger:   deps.Logger,
		Serving:  s.server.SetServing,
	})
	s.receiver = notice.NewReceiver(cfg.Notice, deps.Logger, deps.Metrics, notice.Listener{Notice: s.hub.Notice})
	return s, nil
}

// lagEvery is how often the lag of the database is measured.
const lagEvery = time.Second

// Run serves until ctx ends: then health is NOT_SERVING and streams end with
// UNAVAILABLE at once. Everything it started is gone when it returns.
func (s *Streamer) Run(ctx context.Context) error {
	defer s.database.Close()
	defer s.hub.Close() //nolint:contextcheck // the last counts come after the end of ctx
	// The feeds outlive the server, so that no stream misses anything before it
	// ends.
	feeding, stopFeeding := context.WithCancel(context.WithoutCancel(ctx))
	defer stopFeeding()
	var feeds errgroup.Group
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	for _, feed := range []func(context.Context) error{s.receiver.Run, s.sweeper.Run} {
		feeds.Go(func() error {
			defer stopServing() // a streamer that hears nothing serves nothing
			return feed(feeding)
		})
	}
	feeds.Go(func() error {
		s.database.WatchLag(feeding, "0", lagEvery)
		return nil
	})
	err := s.server.Serve(serving, s.listener)
	stopFeeding()
	return errors.Join(err, feeds.Wait())
}
