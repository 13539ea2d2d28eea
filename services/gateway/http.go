package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/console"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/front"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/web"
)

// newWeb is the handler of everything that is not native gRPC.
func (g *Gateway) newWeb(methods []method) (*web.Handler, error) {
	served := healthMethods(g.native.Health())
	for _, m := range methods {
		served = append(served, web.Method{Name: m.fullName(), Unary: m.unary, Stream: m.stream, ClientStreams: m.clientStreams})
	}
	var pages http.Handler
	if g.config.Front.Console {
		pages = console.Handler()
	}
	return web.New(web.Deps{
		Methods:         served,
		Observer:        rpc.NewObserver(g.deps.Logger, g.deps.Metrics),
		Logger:          g.deps.Logger,
		Context:         webContext,
		Unknown:         unimplemented,
		Pages:           pages,
		MaxRequestBytes: int(g.config.Limits.MaxRequestBytes),
		BodyTimeout:     g.config.Front.BodyTimeout,
		Budgets:         g.budgets,
		Calls:           g.calls,
		Patience:        g.config.Forward.Hold,
		Origins:         g.config.Front.CORSOrigins,
	})
}

// healthMethods are the standard health service for pages and curl. Watching is
// for balancers, which speak native gRPC.
func healthMethods(health healthv1.HealthServer) []web.Method {
	return []web.Method{
		{Name: healthv1.Health_Check_FullMethodName, Unary: local(health.Check)},
		{Name: healthv1.Health_List_FullMethodName, Unary: local(health.List)},
	}
}

// local answers here what is decoded anyway.
func local[Request any, PRequest interface {
	*Request
	proto.Message
}, Response proto.Message](answer func(context.Context, PRequest) (Response, error)) func(context.Context, *rpc.Frame) (*rpc.Frame, error) {
	return func(ctx context.Context, frame *rpc.Frame) (*rpc.Frame, error) {
		request := PRequest(new(Request))
		if err := proto.Unmarshal(frame.Take(), request); err != nil {
			return nil, fault.Invalidf(fault.NoReason, "the request is not a protobuf message")
		}
		response, err := answer(ctx, request)
		if err != nil {
			return nil, err
		}
		encoded, err := proto.Marshal(response)
		return rpc.FrameOf(encoded), err
	}
}

// httpServer speaks HTTP/1.1 and HTTP/2 on connections that the splitter has
// taken out of TLS already.
func (g *Gateway) httpServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           g.web,
		ConnContext:       front.Context,
		Protocols:         protocols,
		ReadHeaderTimeout: g.config.Front.HeaderTimeout,
		IdleTimeout:       g.config.Front.IdleTimeout,
		MaxHeaderBytes:    g.config.Front.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(g.deps.Logger.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: int(g.config.Limits.MaxConcurrentStreams),
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          20 * time.Second,
			WriteByteTimeout:     g.config.Front.BodyTimeout,
		},
	}
}

// tls is nil without a certificate.
func (c FrontConfig) tls() (*tls.Config, error) {
	if c.TLSCertFile == "" {
		return nil, nil //nolint:nilnil // no TLS is no error
	}
	certificate, err := tls.LoadX509KeyPair(c.TLSCertFile, c.TLSKeyFile)
	if err != nil {
		return nil, fmt.Errorf("load XMTP_TLS_CERT_FILE and XMTP_TLS_KEY_FILE: %w", err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
	}, nil
}
