// Package publisher is the role that stores envelopes: it serves Publish
// (section 5 of the specification) and announces what it stored.
package publisher

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/wallet"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/groupcommit"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/judge"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/validate"
)

// Deps are what a publisher is given.
type Deps struct {
	Listener net.Listener
	Logger   *slog.Logger
	Metrics  *telemetry.Metrics
	// Clock decides about the lifetime of key packages; nil is the real one.
	Clock func() time.Time
}

// Publisher serves one listener. Make it with New and call Run once.
type Publisher struct {
	cfg       Config
	deps      Deps
	rules     judge.Rules
	store     *store.Publisher
	wallet    *wallet.Verifier
	sender    *notice.Sender
	budgets   validate.Budgets
	validator *validate.Validator
	committer *groupcommit.Committer[*request.Request]
	memory    *semaphore.Weighted
	server    *rpc.Server
}

// New builds a publisher and starts nothing.
func New(cfg Config, deps Deps) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Listener == nil || deps.Logger == nil || deps.Metrics == nil {
		return nil, errors.New("a publisher needs a listener, a logger and metrics")
	}
	if deps.Clock == nil {
		deps.Clock = time.Now
	}
	verifier, err := wallet.New(cfg.Wallet)
	if err != nil {
		return nil, err
	}
	p := &Publisher{
		cfg: cfg, deps: deps, wallet: verifier,
		rules:  judge.Rules{Limits: cfg.Limits, Retention: cfg.Retention},
		sender: notice.NewSender(cfg.Notice, deps.Logger, deps.Metrics),
		memory: semaphore.NewWeighted(cfg.Group.MemoryBytes),
	}
	verifier.OnResult = p.countVerification
	p.store, err = store.OpenPublisher(cfg.PrimaryURL, cfg.Pool, p.lineageChanged)
	if err != nil {
		verifier.Close()
		return nil, err
	}
	p.store.Pool().Measure(deps.Metrics)
	p.budgets = validate.NewBudgets(cfg.Limits)
	deps.Metrics.ObserveBudget("decoding", p.budgets.Decoding)
	deps.Metrics.ObserveBudget("histories", p.budgets.Histories)
	p.validator = validate.New(validate.Deps{
		Histories: p.store, Contracts: contracts{verifier}, Clock: deps.Clock, Limits: cfg.Limits,
		ChainTimeout: cfg.Wallet.Timeout, Budgets: p.budgets,
	})
	p.committer = groupcommit.New(groupcommit.Config{
		MaxInFlight:   cfg.Group.MaxInFlight,
		FillRows:      cfg.Group.FillRows,
		Patience:      cfg.Group.Patience,
		MaxAlone:      int(cfg.Pool.MaxConns) - cfg.minConns() + 1,
		MaxRows:       cfg.Group.MaxRows,
		MaxBytes:      cfg.Group.MaxBytes,
		MaxWaiting:    cfg.Group.MaxWaiting,
		Timeout:       groupTimeout,
		IsLockTimeout: store.IsLockTimeout,
		Recovered:     func(v any) error { return rpc.Recovered(deps.Logger, v) },
		Concluded:     p.sender.Wake,
	}, p.commit)
	p.server = rpc.NewServer(cfg.RPC, rpc.ServerDeps{
		Metrics: deps.Metrics, Logger: deps.Logger,
		MaxRequestBytes: int(cfg.Limits.MaxRequestBytes),
		Options:         []grpc.ServerOption{rpc.KeptHandlers()},
	}, rpc.Service{
		Name:    "xmtp.backend.v1.PublishService",
		Methods: []rpc.Method{{Name: "Publish", Unary: p.publish, Answered: p.sender.Wake}},
	})
	return p, nil
}

// Run serves until ctx ends, then drains: no new call, the running ones within
// the drain time, then the transactions in flight and the notices.
func (p *Publisher) Run(ctx context.Context) error {
	defer p.wallet.Close()
	defer p.store.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The bus outlives the calls, whose notices it takes.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var group errgroup.Group
	group.Go(func() error {
		defer stop()
		err := p.server.Serve(ctx, p.deps.Listener)
		closing, giveUp := context.WithTimeout(background, p.cfg.RPC.StopTimeout)
		defer giveUp()
		if err != nil { // that time has passed
			giveUp()
		}
		p.committer.Close(closing)
		return err
	})
	group.Go(func() error {
		err := p.sender.Run(background)
		if err != nil { // no notice would ever be sent
			cancel()
		}
		return err
	})
	group.Go(func() error {
		p.watchHealth(ctx)
		return nil
	})
	return group.Wait()
}

// contracts asks the chains about signatures in identity updates.
type contracts struct{ *wallet.Verifier }

func (c contracts) VerifyContract(ctx context.Context, s association.ContractSignature) (bool, error) {
	return c.VerifyAdmitted(ctx, s.AccountID, s.BlockNumber, s.Hash, s.Signature)
}
