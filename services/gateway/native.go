package gateway

import (
	"context"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // compressed requests
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

// newNative is the server on grpc-go's transport.
func (g *Gateway) newNative(methods []method) *rpc.Server {
	admission := g.newAdmission(methods)
	server := rpc.NewServer(g.config.RPC, rpc.ServerDeps{
		Metrics:         g.deps.Metrics,
		Logger:          g.deps.Logger,
		MaxRequestBytes: int(g.config.Limits.MaxRequestBytes),
		Public: &rpc.Public{
			Arrival: rpc.Arrival{
				Timeout: g.config.Front.BodyTimeout, Patience: g.config.Forward.Hold,
				Holder: func(ctx context.Context) *budget.Holder { return g.budgets.From(ctx).Bodies },
			},
			Cancelled: func(ctx context.Context) { g.budgets.From(ctx).Cancelled() },
		},
		Unknown: unimplemented,
		Options: append(nativeOptions(g.config), grpc.InTapHandle(admission.tap)),
	}, nativeServices(methods, g.config.Front.BodyTimeout, g.deps.Logger)...)
	if g.config.Front.Reflection {
		server.RegisterOn(func(s *grpc.Server) { reflection.Register(s) })
	}
	return server
}

// transportHeaderBytes is how long the headers of a call may be for grpc-go, which
// ends the whole connection for longer ones. Proxies let no more through; calls with
// headers up to it are refused alone, see admission.
const transportHeaderBytes = 64 << 10

// nativeOptions are the limits of the public port on grpc-go's transport.
func nativeOptions(c Config) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(c.Limits.MaxConcurrentStreams),
		grpc.MaxHeaderListSize(transportHeaderBytes),
		grpc.ConnectionTimeout(c.Front.HeaderTimeout),
		grpc.ReadBufferSize(0), // the connection has a buffer of its own (package front)
		rpc.KeptHandlers(),
		// Phones ask every few seconds whether the path still works, also between
		// calls; that is no reason to cut them off.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: c.Front.IdleTimeout,
			Time:              30 * time.Second,
			Timeout:           20 * time.Second,
		}),
	}
}
