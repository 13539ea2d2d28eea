// Package gateway is the one public port: native gRPC, gRPC-Web and Connect JSON
// reach the same methods, whose messages go to the roles as raw bytes.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/forward"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/front"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/web"
	"golang.org/x/sync/errgroup"
)

// Deps is what a gateway needs beside its configuration.
type Deps struct {
	Listener net.Listener
	Logger   *slog.Logger
	Metrics  *telemetry.Metrics
	// Version is published as server_version.
	Version string
}

// Gateway serves the public port.
type Gateway struct {
	config  Config
	deps    Deps
	budgets caller.Budgets
	calls   *caller.Calls
	roles   roles
	native  *rpc.Server
	web     *web.Handler
	split   *front.Splitter
}

// New builds a gateway and starts nothing: no role is reached before Run.
func New(cfg Config, deps Deps) (*Gateway, error) {
	if deps.Listener == nil || deps.Logger == nil || deps.Metrics == nil || deps.Version == "" {
		return nil, errors.New("a gateway needs a listener, a logger, metrics and a version")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	configuration, err := published(cfg, deps.Version)
	if err != nil {
		return nil, err
	}
	secured, err := cfg.Front.tls()
	if err != nil {
		return nil, err
	}
	g := &Gateway{config: cfg, deps: deps, calls: cfg.Front.calls()}
	g.budgets = cfg.Forward.Budgets(int64(cfg.Limits.MaxRequestBytes), int64(cfg.Limits.MaxResponseBytes))
	deps.Metrics.ObserveBudget(telemetry.GatewayBodies, g.budgets.Bodies)
	deps.Metrics.ObserveBudget("answers", g.budgets.Answers)
	if g.roles, err = dialRoles(cfg, deps, g.budgets); err != nil {
		return nil, err
	}
	methods := methodsOf(g.roles, configuration)
	g.native = g.newNative(methods)
	if g.web, err = g.newWeb(methods); err != nil {
		return nil, errors.Join(err, g.roles.close())
	}
	g.split = front.New(front.Config{
		AllHTTP: cfg.Front.HTTP2 == HTTP2HTTP, TLS: secured, HeaderTimeout: cfg.Front.HeaderTimeout,
		MaxConnections: cfg.Front.MaxConnections, MaxPerAddress: cfg.Front.perAddress(),
		MaxConcurrentStreams: cfg.Limits.MaxConcurrentStreams, Patience: cfg.Front.BodyTimeout, Budgets: g.budgets,
	}, deps.Listener, deps.Logger)
	return g, nil
}

func dialRoles(cfg Config, deps Deps, budgets caller.Budgets) (roles, error) {
	var r roles
	var errs []error
	for _, role := range []struct {
		into            **forward.Role
		name, endpoints string
	}{
		{&r.publisher, "publisher", cfg.PublisherEndpoint},
		{&r.reader, "reader", cfg.ReaderEndpoint},
		{&r.streamer, "streamer", cfg.StreamerEndpoint},
	} {
		made, err := forward.NewRole(cfg.Forward, forward.Deps{
			Name: role.name, Endpoints: role.endpoints, MaxResponseBytes: int(cfg.Limits.MaxResponseBytes),
			Budgets: budgets, Metrics: deps.Metrics,
		})
		*role.into = made
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return r, errors.Join(err, r.close())
	}
	return r, nil
}

func (r roles) close() error {
	var errs []error
	for _, role := range r.each() {
		if role != nil {
			errs = append(errs, role.Close())
		}
	}
	return errors.Join(errs...)
}

// Run serves until ctx ends, then drains. It can be called once.
func (g *Gateway) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	// Connections are accepted until the drain is over: a browser that calls in
	// the meantime reads UNAVAILABLE, not a network error.
	accepting, stopAccepting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAccepting()
	drained := make(chan struct{})
	server := g.httpServer()
	for _, role := range g.roles.each() {
		group.Go(func() error {
			role.Watch(ctx, g.roleChanged(role.Name()))
			return nil
		})
	}
	group.Go(func() error { return g.serveWhenReady(ctx) })
	group.Go(func() error { return g.split.Run(accepting) })
	group.Go(func() error {
		defer close(drained)
		return g.native.Serve(ctx, g.split.Native())
	})
	group.Go(func() error {
		if err := server.Serve(g.split.Web()); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		defer stopAccepting()
		g.web.Drain()
		return g.shutdown(context.WithoutCancel(ctx), server, drained)
	})
	return errors.Join(group.Wait(), g.roles.close())
}

// shutdown ends net/http when the native calls have ended or their time is over.
func (g *Gateway) shutdown(ctx context.Context, server *http.Server, drained <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, g.config.RPC.DrainTimeout)
	defer cancel()
	select {
	case <-drained:
	case <-ctx.Done():
	}
	if server.Shutdown(ctx) != nil {
		return server.Close()
	}
	return nil
}

// serveWhenReady makes the health SERVING once every role has had a ready
// instance. From then on a role that is away answers for its own methods only.
func (g *Gateway) serveWhenReady(ctx context.Context) error {
	for _, role := range g.roles.each() {
		if err := role.AwaitReady(ctx); err != nil {
			return nil //nolint:nilerr // the gateway is told to stop
		}
	}
	g.native.SetServing(true)
	g.deps.Logger.Info("every role has a ready instance", "listen", g.deps.Listener.Addr().String())
	return nil
}

// roleChanged logs whether a role can be called.
func (g *Gateway) roleChanged(name string) func(ready bool) {
	return func(ready bool) {
		if ready {
			g.deps.Logger.Info("an instance of the " + name + " is ready")
		} else {
			g.deps.Logger.Warn("no instance of the " + name + " is ready: its calls wait, and a gateway that has just started does not serve")
		}
	}
}

// Listen opens the port of the configuration.
func Listen(ctx context.Context, cfg Config) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on XMTP_GATEWAY_LISTEN: %w", err)
	}
	return listener, nil
}
