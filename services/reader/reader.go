// Package reader is the role that answers reads: queries from the primary,
// newest envelopes and inbox lookups from a replica, or a few of them from the
// primary while no replica is up, wallet signatures from a chain. It keeps no state, so that any number of readers can run side by side.
package reader

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/wallet"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/database"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/identity"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/query"
)

// Deps is what a reader needs beside its configuration.
type Deps struct {
	Listener net.Listener
	Logger   *slog.Logger
	Metrics  *telemetry.Metrics
}

// Reader is the role.
type Reader struct {
	deps     Deps
	server   *rpc.Server
	primary  *database.Set
	replica  *database.Set // primary when there is no replica
	verifier *wallet.Verifier
	// responses holds what is read until it has been taken.
	responses *budget.Budget
	// requests holds what arrives until it has been answered.
	requests *budget.Budget

	// health is held while the role's health is found and set.
	health sync.Mutex
}

// New builds a reader and starts nothing.
func New(cfg Config, deps Deps) (*Reader, error) {
	if deps.Listener == nil || deps.Logger == nil || deps.Metrics == nil {
		return nil, errors.New("a reader needs a listener, a logger and metrics")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Reader{deps: deps}
	var err error
	if r.verifier, err = wallet.New(cfg.Wallet); err != nil {
		return nil, err
	}
	r.verifier.OnResult = func(result string) {
		deps.Metrics.SCWVerifications.Add(context.Background(), 1, metric.WithAttributes(attribute.String("result", result)))
	}
	if err := r.openDatabases(cfg); err != nil {
		return nil, err
	}
	r.server = r.serve(cfg)
	return r, nil
}

func (r *Reader) serve(cfg Config) *rpc.Server {
	replica := query.Database(r.replica)
	if r.replica != r.primary && cfg.PrimaryFallback > 0 {
		replica = database.NewFallback(r.replica, r.primary, cfg.PrimaryFallback, cfg.Pool.AcquireTimeout)
	}
	r.responses, r.requests = budget.New(cfg.ResponseBytes, 0), budget.New(cfg.RequestBytes, 0)
	verifications := budget.New(cfg.VerificationBytes, 0)
	r.deps.Metrics.ObserveBudget("responses", r.responses)
	r.deps.Metrics.ObserveBudget("requests", r.requests)
	r.deps.Metrics.ObserveBudget("verifications", verifications)
	rooms := rpc.Rooms{Budget: r.responses, Patience: cfg.RPC.AnswerTimeout}
	return rpc.NewServer(cfg.RPC, rpc.ServerDeps{
		Metrics: r.deps.Metrics, Logger: r.deps.Logger,
		MaxRequestBytes: int(cfg.Limits.MaxRequestBytes),
		Responses:       r.responses,
		Arrival: &rpc.Arrival{
			Timeout: cfg.RPC.AnswerTimeout, Patience: cfg.RPC.AnswerTimeout, Whole: true,
			Holder: func(context.Context) *budget.Holder { return r.requests.Holder() },
		},
		Options: []grpc.ServerOption{rpc.KeptHandlers()},
	},
		query.New(cfg.Limits, rooms, r.primary, replica).Service(),
		identity.New(cfg.Limits, rooms, replica, r.verifier, cfg.SCWConcurrency, verifications).Service())
}

func (r *Reader) openDatabases(cfg Config) error {
	var err error
	// Query reads the primary and nothing else (API-018), also while the URL's name
	// or one of its hosts leads to a standby.
	r.primary, err = database.Open("primary", []config.Secret{cfg.PrimaryURL}, cfg.Database, cfg.Pool, r.deps.Metrics, r.databaseChanged, store.PrimaryOnly)
	if err != nil {
		return err
	}
	r.replica = r.primary
	if len(cfg.ReplicaURL) == 0 {
		return nil
	}
	if r.replica, err = database.Open("replica", cfg.ReplicaURL, cfg.Database, cfg.Pool, r.deps.Metrics, r.databaseChanged); err != nil {
		r.primary.Close()
	}
	return err
}

// databaseChanged sets the role's health. A reader serves while any of its
// databases is up: what the others would answer is UNAVAILABLE call by call, and
// no reason to take the rest away.
func (r *Reader) databaseChanged(database string, cause error) {
	// Each database has its own watcher. Without the lock, one could look, be
	// overtaken by the other, and set for good what had been true before.
	r.health.Lock()
	r.server.SetServing(r.primary.Up() || r.replica.Up())
	r.health.Unlock()
	if cause != nil {
		r.deps.Logger.Warn("a database of the reader cannot be used", "database", database, "cause", cause)
		return
	}
	r.deps.Logger.Info("a database of the reader is up", "database", database)
}

// Run serves until ctx ends, then drains. It can be called once.
func (r *Reader) Run(ctx context.Context) error {
	// The databases are watched until the last call has been answered.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var group errgroup.Group
	for _, set := range r.sets() {
		group.Go(func() error { return set.Run(watching) })
	}
	group.Go(func() error {
		defer stop()
		return r.server.Serve(ctx, r.deps.Listener)
	})
	err := group.Wait()
	for _, set := range r.sets() {
		set.Close()
	}
	r.verifier.Close()
	return err
}

func (r *Reader) sets() []*database.Set {
	if r.replica == r.primary {
		return []*database.Set{r.primary}
	}
	return []*database.Set{r.primary, r.replica}
}
