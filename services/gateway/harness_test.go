package gateway_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/metertest"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/gateway"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon bounds every wait of these tests.
const soon = 20 * time.Second

// fakeRole is a real role server whose handlers belong to the test. One of it
// stands for all three roles.
type fakeRole struct {
	address string

	// drainTimeout is how long unary calls may go on when it stops.
	drainTimeout time.Duration

	mu      sync.Mutex
	headers metadata.MD // of the last unary call
	stop    func()

	publish   func(ctx context.Context, request *backendv1.PublishRequest) (*backendv1.PublishResponse, error)
	query     func(ctx context.Context, request *backendv1.QueryRequest) (*backendv1.QueryResponse, error)
	subscribe func(stream grpc.ServerStream) error
	static    func(request *backendv1.SubscribeStaticRequest, stream grpc.ServerStream) error
}

// unary decodes and encodes as a role does.
func unary[Request, Response any, PRequest interface {
	*Request
	proto.Message
}, PResponse interface {
	*Response
	proto.Message
}](role *fakeRole, handler *func(context.Context, PRequest) (PResponse, error)) func(context.Context, []byte) (*rpc.Frame, error) {
	return func(ctx context.Context, encoded []byte) (*rpc.Frame, error) {
		incoming, _ := metadata.FromIncomingContext(ctx)
		role.mu.Lock()
		role.headers = incoming
		role.mu.Unlock()
		request := PRequest(new(Request))
		if err := proto.Unmarshal(encoded, request); err != nil {
			return nil, fault.Invalidf(fault.MalformedPayload, "the request is not a protobuf message")
		}
		if *handler == nil {
			return &rpc.Frame{}, nil
		}
		response, err := (*handler)(ctx, request)
		if err != nil {
			return nil, err
		}
		answer, err := proto.Marshal(response)
		return rpc.FrameOf(answer), err
	}
}

// start listens on address, or on a free port.
func (r *fakeRole) start(t testing.TB, address string) {
	t.Helper()
	if address == "" {
		address = freeAddress(t)
	}
	var listener net.Listener
	require.Eventually(t, func() bool {
		var err error
		listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		return err == nil
	}, soon, 5*time.Millisecond, "listen on %s", address)
	r.address = listener.Addr().String()
	server := rpc.NewServer(rpc.Config{DrainTimeout: r.drainTimeout, StopTimeout: 5 * time.Second},
		rpc.ServerDeps{Metrics: telemetry.Discard(), Logger: slog.New(slog.DiscardHandler), MaxRequestBytes: 25 << 20},
		rpc.Service{Name: "xmtp.backend.v1.PublishService", Methods: []rpc.Method{{Name: "Publish", Unary: unary(r, &r.publish)}}},
		rpc.Service{Name: "xmtp.backend.v1.QueryService", Methods: []rpc.Method{{Name: "Query", Unary: unary(r, &r.query)}}},
		rpc.Service{Name: "xmtp.backend.v1.SubscriptionService", Methods: []rpc.Method{
			{Name: "Subscribe", ClientStreams: true, Stream: func(stream grpc.ServerStream) error { return r.subscribe(stream) }},
			{Name: "SubscribeStatic", Stream: r.serveStatic},
		}})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	server.SetServing(true)
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-served)
	})
	t.Cleanup(r.stop)
}

func (r *fakeRole) serveStatic(stream grpc.ServerStream) error {
	var frame rpc.Frame
	if err := stream.RecvMsg(&frame); err != nil {
		return err
	}
	request := &backendv1.SubscribeStaticRequest{}
	if err := proto.Unmarshal(frame.Take(), request); err != nil {
		return fault.Invalidf(fault.NoReason, "the request is not a protobuf message")
	}
	return r.static(request, stream)
}

func (r *fakeRole) lastHeaders() metadata.MD {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.headers
}

// freeAddress is one on which nobody else listens, before and after whoever the test starts there.
func freeAddress(t testing.TB) string {
	t.Helper()
	port, err := freeport.Pick()
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// front is a running gateway.
type front struct {
	address string
	conn    *grpc.ClientConn
	meter   *metertest.Meter
	stop    func()
}

// startGateway runs a gateway whose roles are all the one given.
func startGateway(t testing.TB, role *fakeRole, environment map[string]string) *front {
	t.Helper()
	return startGatewayLogging(t, role, environment, slog.New(slog.DiscardHandler))
}

func startGatewayLogging(t testing.TB, role *fakeRole, environment map[string]string, logger *slog.Logger) *front {
	t.Helper()
	variables := map[string]string{
		"XMTP_IDENTIFIER": "org.example.chat", "XMTP_GATEWAY_LISTEN": freeAddress(t),
		"XMTP_PUBLISHER_ENDPOINT": role.address, "XMTP_READER_ENDPOINT": role.address, "XMTP_STREAMER_ENDPOINT": role.address,
	}
	for name, value := range environment {
		variables[name] = value
	}
	cfg, err := config.LoadFrom[gateway.Config](variables)
	require.NoError(t, err)
	listener, err := gateway.Listen(t.Context(), cfg)
	require.NoError(t, err)
	meter := metertest.New(t)
	running, err := gateway.New(cfg, gateway.Deps{
		Listener: listener, Logger: logger, Metrics: meter.Metrics, Version: "1.2.3",
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- running.Run(ctx) }()
	f := &front{address: listener.Addr().String(), meter: meter}
	f.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(f.stop)
	f.conn = dial(t, f.address)
	return f
}

func dial(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}
