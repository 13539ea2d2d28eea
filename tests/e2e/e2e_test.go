// Package e2e runs the whole backend in one process and sends recorded client
// sessions through its gateway.
package e2e_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/cmd/replay"
	"github.com/xmtp-selfhosted/backend/cmd/stack"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/tests/chainstub"
)

// recordedAt lies within the lifetime of every recorded key package.
var recordedAt = time.Date(2026, 11, 29, 16, 0, 0, 0, time.UTC)

// start brings up a stack of the test's own whose clock stands at the time of
// the recording and whose chains give the recorded verdicts.
func start(t *testing.T) (*stack.Stack, *grpc.ClientConn) {
	t.Helper()
	return startWith(t, chainstub.Start(t).Environment())
}

// startWith brings up a stack with other chains.
func startWith(t *testing.T, chains string) (*stack.Stack, *grpc.ClientConn) {
	t.Helper()
	s, err := stack.Start(t.Context(), stack.Options{
		Dir:         tempDir(t),
		Environment: map[string]string{"XMTP_CHAINS": chains},
		Settings:    map[string]string{"fsync": "off"},
		Clock:       func() time.Time { return recordedAt },
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	return s, dial(t, s.Endpoints.Gateway)
}

// tempDir is a folder that PostgreSQL's own user can enter, unlike t.TempDir.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "xmtp-e2e-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func dial(t *testing.T, endpoint string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func replayRecorded(t *testing.T, connection *grpc.ClientConn, between func(request int)) *replay.Report {
	t.Helper()
	plan, err := replay.Recorded()
	require.NoError(t, err)
	report, err := replay.Run(t.Context(), connection, plan, replay.Options{DeliveryTimeout: time.Minute, Between: between})
	require.NoError(t, err)
	require.Equal(t, 386, report.Published)
	require.Equal(t, 381, report.Stored, "five recorded payloads are repeats")
	require.Equal(t, 381, report.Delivered)
	require.Equal(t, 381-45, report.ReadBack, "all but the key packages")
	return report
}

// Proves API-023, API-065, API-066, I5, I7.
func TestRecordedSessionComesOutAsItWentIn(t *testing.T) {
	s, connection := start(t)
	report := replayRecorded(t, connection, nil)
	require.Equal(t, report.Delivered, report.Live)

	// Once more: all are duplicates, with the same metadata.
	again := replayRecorded(t, connection, nil)
	require.Zero(t, again.Live)

	lookup(t, connection)
	t.Logf("publish to delivery: median %v, 99%% below %v", report.Median, report.P99)
	require.NotEmpty(t, s.Endpoints.PrimaryURL)
}

// lookup checks one recorded association through the gateway: alice's wallet.
func lookup(t *testing.T, connection *grpc.ClientConn) {
	t.Helper()
	client := backendv1.NewIdentityServiceClient(connection)
	const alice, inbox = "0x41bfbb381d9ed37188cc72249db4f2f3ef9bdc3b", "777adf4c183eb66aafd57f606808d226f63262e2893761a7655ae5a1ef8f31e2"
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the replica may lag
		response, err := client.GetInboxIds(t.Context(), &backendv1.GetInboxIdsRequest{Requests: []*backendv1.GetInboxIdsRequest_Request{
			{Identifier: alice, IdentifierKind: associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM}}})
		require.NoError(c, err)
		require.Equal(c, inbox, response.GetResponses()[0].GetInboxId())
	}, 10*time.Second, 20*time.Millisecond)
}

func TestStreamerRestartedHalfWay(t *testing.T) {
	s, connection := start(t)
	replayRecorded(t, connection, func(request int) {
		if request == 150 {
			require.NoError(t, s.StopRole(stack.Streamer))
			require.NoError(t, s.StartRole(stack.Streamer))
		}
	})
}

// Proves I6.
func TestWithoutNoticesTheSweepDelivers(t *testing.T) {
	s, connection := start(t)
	s.NATS.Stop() // no notice goes anywhere from here on
	replayRecorded(t, connection, nil)
}

// With one role away its calls fail within a bounded time as UNAVAILABLE, and
// the others keep working.
func TestARoleThatIsAway(t *testing.T) {
	s, connection := start(t)
	kit := testkit.New(1)
	group := kit.Group()
	calls := map[stack.Role]func(context.Context) error{
		stack.Publisher: func(ctx context.Context) error {
			_, err := backendv1.NewPublishServiceClient(connection).Publish(ctx, &backendv1.PublishRequest{
				Envelopes: []*backendv1.ClientEnvelope{kit.GroupMessage(group, 100)}})
			return err
		},
		stack.Reader: func(ctx context.Context) error {
			_, err := backendv1.NewQueryServiceClient(connection).Query(ctx, &backendv1.QueryRequest{
				Queries: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}}})
			return err
		},
		stack.Streamer: func(ctx context.Context) error {
			stream, err := backendv1.NewSubscriptionServiceClient(connection).SubscribeStatic(ctx, &backendv1.SubscribeStaticRequest{
				Topics: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}}})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
	}
	for away := range calls {
		require.NoError(t, s.StopRole(away))
		for role, call := range calls {
			begun := time.Now()
			err := call(t.Context())
			if role != away {
				require.NoError(t, err, "%s while the %s is away", role, away)
				continue
			}
			require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", role, err)
			require.Less(t, time.Since(begun), 20*time.Second)
		}
		require.NoError(t, s.StartRole(away))
		require.NoError(t, calls[away](t.Context()), "%s after its return", away)
	}
}

// Proves API-030.
func TestBadInputIsRefusedAndNothingIsStored(t *testing.T) {
	_, connection := start(t)
	kit := testkit.New(3)
	group := kit.Group()
	publisher := backendv1.NewPublishServiceClient(connection)
	for _, broken := range kit.Broken(recordedAt) {
		t.Run(broken.Name, func(t *testing.T) {
			_, err := publisher.Publish(t.Context(), &backendv1.PublishRequest{
				Envelopes: []*backendv1.ClientEnvelope{kit.GroupMessage(group, 10), broken.Envelope}})
			refused := status.Convert(err)
			require.Equal(t, codes.InvalidArgument, refused.Code(), refused.Message())
			require.Len(t, refused.Details(), 1)
			detail, ok := refused.Details()[0].(*backendv1.PublishError)
			require.True(t, ok, "%T", refused.Details()[0])
			require.Equal(t, uint32(1), detail.GetIndex())
			require.Equal(t, backendv1.PublishError_Reason(broken.Reason), detail.GetReason())
		})
	}
	page, err := backendv1.NewQueryServiceClient(connection).Query(t.Context(), &backendv1.QueryRequest{
		Queries: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}}})
	require.NoError(t, err)
	require.Empty(t, page.GetEnvelopes(), "a refused request stores none of its envelopes")
}
