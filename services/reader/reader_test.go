package reader_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/reader"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, config.Secret(url))
	return err
}

// configuration is the default one with tests' names for the servers.
func configuration(t testing.TB, primary string, replicas ...string) reader.Config {
	t.Helper()
	cfg, err := config.LoadFrom[reader.Config](map[string]string{
		"XMTP_PRIMARY_URL": primary, "XMTP_DB_PROBE_INTERVAL": "50ms", "XMTP_DB_CONNECT_TIMEOUT": "10s", "XMTP_DB_ACQUIRE_TIMEOUT": "10s",
		"XMTP_DB_PROBE_TIMEOUT": "10s",
	})
	require.NoError(t, err)
	for _, url := range replicas {
		cfg.ReplicaURL = append(cfg.ReplicaURL, config.Secret(url))
	}
	return cfg
}

// role is a reader on loopback with clients of its services.
type role struct {
	backendv1.QueryServiceClient
	backendv1.IdentityServiceClient
	healthv1.HealthClient
	conn *grpc.ClientConn
	made *reader.Reader
}

// start runs a reader for the length of a test.
func start(t testing.TB, cfg reader.Config) role {
	t.Helper()
	return startLogging(t, cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

func startLogging(t testing.TB, cfg reader.Config, logger *slog.Logger) role {
	t.Helper()
	listener, err := freeport.Listen()
	require.NoError(t, err)
	made, err := reader.New(cfg, reader.Deps{Listener: listener, Logger: logger, Metrics: telemetry.Discard()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- made.Run(ctx) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(30 * time.Second):
			t.Error("the reader did not end within 30 s")
		}
	})
	return role{backendv1.NewQueryServiceClient(conn), backendv1.NewIdentityServiceClient(conn), healthv1.NewHealthClient(conn), conn, made}
}

// raw calls a method with bytes that may not be its request.
func (r role) raw(t testing.TB, method string, request []byte) error {
	t.Helper()
	var answer rpc.Frame
	err := r.conn.Invoke(t.Context(), "/xmtp.backend.v1."+method, rpc.FrameOf(request), &answer, grpc.ForceCodecV2(rpc.Codec{}))
	if err == nil {
		answer.Free()
	}
	return err
}

func (r role) serving(t testing.TB) bool {
	t.Helper()
	answer, err := r.Check(t.Context(), &healthv1.HealthCheckRequest{})
	return err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING
}

func (r role) awaitServing(t testing.TB, want bool) {
	t.Helper()
	eventually(t, "the health to change", func() bool { return r.serving(t) == want })
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, 30*time.Second, 10*time.Millisecond, what)
}

func requireCode(t testing.TB, want codes.Code, err error) {
	t.Helper()
	require.Equal(t, want.String(), status.Code(err).String(), "%v", err)
}

// connect opens a plain connection for what a test does behind the role's back.
func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
