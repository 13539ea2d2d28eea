package publisher_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

// within bounds every wait of these tests.
const within = 2 * time.Minute

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, config.Secret(url))
	return err
}

// identifier is the backend's; its dot must be escaped in subjects.
const identifier = "org.example.test"

// role is a publisher under test.
type role struct {
	t       testing.TB
	address string
	client  backendv1.PublishServiceClient
	db      *pgxpool.Pool
	primary string
	nats    string
	stop    func()
}

// option changes the configuration of a role.
type option func(*publisher.Config, *publisher.Deps)

func withLimits(change func(*limit.Config)) option {
	return func(c *publisher.Config, _ *publisher.Deps) { change(&c.Limits) }
}

func withClock(clock func() time.Time) option {
	return func(_ *publisher.Config, d *publisher.Deps) { d.Clock = clock }
}

// start runs a publisher on a database of the test's own and an own bus.
func start(t *testing.T, options ...option) *role {
	t.Helper()
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	return startOn(t, pgtest.MigratedPrimary(t, migrate).PrimaryURL, bus.URL(), options...)
}

// startOn runs a publisher on given servers. It has patience with a database on a
// busy machine.
func startOn(t testing.TB, primary, nats string, options ...option) *role {
	t.Helper()
	listener, err := freeport.Listen()
	require.NoError(t, err)
	cfg, err := config.LoadFrom[publisher.Config](map[string]string{
		"XMTP_PRIMARY_URL": primary, "XMTP_NATS_URL": nats, "XMTP_IDENTIFIER": identifier,
		"XMTP_DB_ACQUIRE_TIMEOUT": "15s", "XMTP_DB_CONNECT_TIMEOUT": "15s",
	})
	require.NoError(t, err)
	deps := publisher.Deps{Listener: listener, Logger: slog.New(slog.DiscardHandler), Metrics: telemetry.Discard()}
	for _, o := range options {
		o(&cfg, &deps)
	}
	p, err := publisher.New(cfg, deps)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	conn := dial(t, listener.Addr().String())
	r := &role{
		t: t, address: listener.Addr().String(), client: backendv1.NewPublishServiceClient(conn), primary: primary, nats: nats,
	}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(within):
			t.Fatal("the publisher did not end")
		}
	}
	t.Cleanup(r.stop)
	r.db, err = pgxpool.New(context.Background(), primary)
	require.NoError(t, err)
	t.Cleanup(r.db.Close)
	return r
}

func dial(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20), grpc.MaxCallRecvMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// publish publishes and requires success: one entry for each envelope.
func (r *role) publish(envelopes ...*backendv1.ClientEnvelope) []*backendv1.EnvelopeMeta {
	r.t.Helper()
	metas, err := r.persist(envelopes...)
	require.NoError(r.t, err)
	require.Len(r.t, metas, len(envelopes))
	return metas
}

// persist tries again when the time is up or the database is away, as clients
// do: a publish of the same bytes may be repeated (API-037).
func (r *role) persist(envelopes ...*backendv1.ClientEnvelope) ([]*backendv1.EnvelopeMeta, error) {
	begun := time.Now()
	for {
		metas, err := r.try(envelopes...)
		code := status.Code(err)
		if code != codes.DeadlineExceeded && code != codes.Unavailable || time.Since(begun) > within {
			return metas, err
		}
	}
}

func (r *role) try(envelopes ...*backendv1.ClientEnvelope) ([]*backendv1.EnvelopeMeta, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	response, err := r.client.Publish(ctx, &backendv1.PublishRequest{Envelopes: envelopes})
	return response.GetEnvelopeMetas(), err
}

// requireRefused checks the code and the detail of a refusal: an index below 0
// is none at all.
func requireRefused(t *testing.T, err error, code codes.Code, reason backendv1.PublishError_Reason, index int) {
	t.Helper()
	refusal := status.Convert(err)
	require.Equal(t, code, refusal.Code(), refusal.Message())
	require.NotEmpty(t, refusal.Message())
	if reason == backendv1.PublishError_REASON_UNSPECIFIED {
		require.Empty(t, refusal.Details())
		return
	}
	require.Len(t, refusal.Details(), 1)
	detail, ok := refusal.Details()[0].(*backendv1.PublishError)
	require.True(t, ok)
	require.Equal(t, reason, detail.GetReason(), refusal.Message())
	require.Equal(t, refusal.Message(), detail.GetMessage())
	if index < 0 {
		require.Nil(t, detail.Index)
		return
	}
	require.NotNil(t, detail.Index, refusal.Message())
	require.EqualValues(t, index, detail.GetIndex(), refusal.Message())
}

// rows counts the stored envelopes.
func (r *role) rows() (n int) {
	r.t.Helper()
	require.NoError(r.t, r.db.QueryRow(r.t.Context(), "SELECT count(*) FROM envelopes").Scan(&n))
	return n
}

// listen hears the notices that the role sends.
func (r *role) listen() <-chan notice.Notice {
	r.t.Helper()
	heard, up := make(chan notice.Notice, 10_000), make(chan bool, 10)
	receiver := notice.NewReceiver(notice.Config{
		URL: config.Secret(r.nats), Identifier: identifier, ConnectTimeout: time.Second, ReconnectWait: 50 * time.Millisecond, WriteTimeout: time.Second,
	}, slog.New(slog.DiscardHandler), telemetry.Discard(), notice.Listener{
		Notice: func(n notice.Notice) { heard <- n }, Connected: func(state bool) { up <- state },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- receiver.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		require.NoError(r.t, <-ended)
	})
	require.True(r.t, receive(r.t, up, "the receiver connects"))
	return heard
}

func receive[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(within):
		t.Fatalf("waited in vain: %s", what)
		panic("unreachable")
	}
}
