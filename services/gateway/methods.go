package gateway

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/forward"
)

// method is one public RPC, whatever the protocol that it is called with.
// Exactly one of unary and stream is set. The context carries the outgoing
// metadata.
type method struct {
	service, name string
	unary         func(ctx context.Context, request *rpc.Frame) (*rpc.Frame, error)
	stream        func(ctx context.Context, client forward.Client) error
	clientStreams bool
}

func (m method) fullName() string { return "/" + m.service + "/" + m.name }

// roles are the three that the gateway forwards to.
type roles struct{ publisher, reader, streamer *forward.Role }

func (r roles) each() []*forward.Role { return []*forward.Role{r.publisher, r.reader, r.streamer} }

// methodsOf is every public RPC of the API.
func methodsOf(r roles, configuration []byte) []method {
	forwarded := func(role *forward.Role, fullName string) method {
		service, name, _ := strings.Cut(strings.TrimPrefix(fullName, "/"), "/")
		return method{service: service, name: name, unary: func(ctx context.Context, request *rpc.Frame) (*rpc.Frame, error) {
			return role.Unary(ctx, fullName, request)
		}}
	}
	streamed := func(fullName string, clientStreams bool) method {
		service, name, _ := strings.Cut(strings.TrimPrefix(fullName, "/"), "/")
		return method{service: service, name: name, clientStreams: clientStreams, stream: func(ctx context.Context, client forward.Client) error {
			return r.streamer.Stream(ctx, fullName, clientStreams, client)
		}}
	}
	return []method{
		forwarded(r.publisher, backendv1.PublishService_Publish_FullMethodName),
		forwarded(r.reader, backendv1.QueryService_Query_FullMethodName),
		forwarded(r.reader, backendv1.QueryService_QueryNewest_FullMethodName),
		streamed(backendv1.SubscriptionService_Subscribe_FullMethodName, true),
		streamed(backendv1.SubscriptionService_SubscribeStatic_FullMethodName, false),
		forwarded(r.reader, backendv1.IdentityService_GetInboxIds_FullMethodName),
		forwarded(r.reader, backendv1.IdentityService_VerifySmartContractWalletSignatures_FullMethodName),
		{service: backendv1.ConfigurationService_ServiceDesc.ServiceName, name: "GetConfiguration",
			unary: func(_ context.Context, request *rpc.Frame) (*rpc.Frame, error) {
				request.Free()
				return rpc.FrameOf(configuration), nil
			}},
	}
}

// nativeServices describes the methods for grpc-go's transport.
func nativeServices(methods []method, patience time.Duration, logger *slog.Logger) []rpc.Service {
	var services []rpc.Service
	index := map[string]int{}
	for _, m := range methods {
		at, known := index[m.service]
		if !known {
			at = len(services)
			index[m.service] = at
			services = append(services, rpc.Service{Name: m.service})
		}
		native := rpc.Method{Name: m.name, ClientStreams: m.clientStreams}
		if m.unary != nil {
			native.Forward = func(ctx context.Context, request *rpc.Frame) (*rpc.Frame, error) {
				return m.unary(nativeContext(ctx), request)
			}
		} else {
			native.Stream = func(stream grpc.ServerStream) error {
				return patiently(stream, patience, logger, m.stream)
			}
		}
		services[at].Methods = append(services[at].Methods, native)
	}
	return services
}

// nativeClient is a client on grpc-go's transport.
type nativeClient struct {
	stream   grpc.ServerStream
	patience time.Duration
	ended    chan<- error
	look     *time.Timer
	// sending is when the current send began, in nanoseconds; 0 between sends.
	sending atomic.Int64
}

// newNativeClient returns a client that is looked after until its stream ends. When
// it has taken nothing for longer than patience, ended gets an error.
func newNativeClient(stream grpc.ServerStream, patience time.Duration, ended chan<- error) *nativeClient {
	c := &nativeClient{stream: stream, patience: patience, ended: ended}
	c.look = time.AfterFunc(math.MaxInt64, c.check)
	c.look.Reset(patience / 2) // not before look is known to check
	return c
}

func (c *nativeClient) check() {
	switch {
	case c.stream.Context().Err() != nil:
	case c.stalled():
		c.ended <- fault.Errorf(fault.Exhausted, "the client took no message for %v", c.patience)
	default:
		c.look.Reset(c.patience / 2)
	}
}

func (c *nativeClient) Recv() (*rpc.Frame, error) {
	frame := &rpc.Frame{}
	return frame, c.stream.RecvMsg(frame)
}

func (c *nativeClient) Send(frame *rpc.Frame) error {
	c.sending.Store(time.Now().UnixNano())
	defer c.sending.Store(0)
	return c.stream.SendMsg(frame)
}

// stalled reports whether the client has taken nothing for longer than patience.
func (c *nativeClient) stalled() bool {
	begun := c.sending.Load()
	return begun != 0 && time.Since(time.Unix(0, begun)) > c.patience
}

// patiently runs a stream and ends it when its client takes nothing any more: a
// send of grpc-go has no time limit of its own. The return from here ends the
// send, and with it the goroutine.
//
// There is one of these for each open stream, deep in grpc-go, and it waits: what
// needs more of a stack is done by the goroutine that it starts.
func patiently(stream grpc.ServerStream, patience time.Duration, logger *slog.Logger, run func(context.Context, forward.Client) error) error {
	ended := make(chan error, 2) // of the client that is too slow, and of the stream
	client := newNativeClient(stream, patience, ended)
	defer client.look.Stop()
	go func() {
		defer func() {
			if p := recover(); p != nil {
				ended <- rpc.Recovered(logger, p)
			}
		}()
		ended <- run(nativeContext(stream.Context()), client) // which ends with the return from here
	}()
	return <-ended
}

// replacements say what to use instead of the APIs that clients of other
// backends may still call (API-152). The first prefix that fits counts.
var replacements = []struct{ prefix, use string }{
	{"/xmtp.mls.api.v1.MlsApi/Query", "xmtp.backend.v1.QueryService"},
	{"/xmtp.mls.api.v1.MlsApi/FetchKeyPackages", "xmtp.backend.v1.QueryService/QueryNewest"},
	{"/xmtp.mls.api.v1.MlsApi/Subscribe", "xmtp.backend.v1.SubscriptionService"},
	{"/xmtp.mls.api.v1.MlsApi/BatchQuery", "xmtp.backend.v1.QueryService"},
	{"/xmtp.mls.api.v1.", "xmtp.backend.v1.PublishService/Publish"},
	{"/xmtp.identity.api.v1.IdentityApi/PublishIdentityUpdate", "xmtp.backend.v1.PublishService/Publish"},
	{"/xmtp.identity.api.v1.IdentityApi/GetIdentityUpdates", "xmtp.backend.v1.QueryService/Query"},
	{"/xmtp.identity.api.v1.", "xmtp.backend.v1.IdentityService"},
	{"/xmtp.message_api.", "the services of xmtp.backend.v1"},
	{"/xmtp.xmtpv4.", "the services of xmtp.backend.v1"},
}

// publicServices is what an unknown method's error offers.
const publicServices = "xmtp.backend.v1 has PublishService, QueryService, SubscriptionService, IdentityService and ConfigurationService"

// unimplemented answers a method that does not exist here, or no longer.
func unimplemented(fullName string) error {
	for _, r := range replacements {
		if strings.HasPrefix(fullName, r.prefix) {
			return fault.Errorf(fault.Unimplemented, "this backend does not serve the deprecated API that the method belongs to; use %s instead", r.use)
		}
	}
	return fault.Errorf(fault.Unimplemented, "this backend has no such method; %s", publicServices)
}
