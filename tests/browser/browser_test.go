// Package browser_test is a web application's view of the backend.
package browser_test

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/proxy"
)

// hold is how long the gateway waits for a role that is away; short, since some
// tests wait it out.
const hold = "1s"

// application is the page, connected to a backend.
type application struct {
	tab
	stack *stack.Stack
	kit   *testkit.Kit
}

// failure is an error as the page saw it.
type failure struct {
	Code    string
	Message string
	Details []struct {
		Type  string
		Value json.RawMessage
	}
	// Network is a call that the browser itself failed: the page learns nothing.
	Network bool
}

// answer is a call's outcome in the page.
type answer struct {
	Response  json.RawMessage
	RequestID string
	Error     *failure
}

// followed is what a follower of one topic saw.
type followed struct {
	Started     int
	SequenceIDs []string
	Errors      []failure
}

func startStack(t *testing.T, environment map[string]string) *stack.Stack {
	t.Helper()
	dir, err := os.MkdirTemp("", "xmtp-browser-") // unlike t.TempDir, PostgreSQL's own user can enter it
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s, err := stack.Start(t.Context(), stack.Options{Dir: dir, Environment: environment, Settings: map[string]string{"fsync": "off"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	return s
}

// Proves API-112, API-160.
func TestBrowser(t *testing.T) {
	s := startStack(t, map[string]string{"XMTP_GATEWAY_HOLD": hold})
	page, kit := servePage(t), testkit.New(1)
	for name, url := range map[string]string{
		"directly, HTTP 1.1":              "http://" + s.Endpoints.Gateway,
		"through nginx, HTTPS and HTTP 2": proxy.Start(t, s.Endpoints.Gateway).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			a := &application{tab: openTab(t, page), stack: s, kit: kit}
			call[any](t, a.tab, "backend.start", url)
			t.Run("publish and query", a.publishAndQuery)
			t.Run("a refused publish", a.refusedPublish)
			t.Run("follow live", a.followLive)
			t.Run("the streamer restarts", func(t *testing.T) { a.restart(t, stack.Streamer) })
			t.Run("the gateway restarts", func(t *testing.T) { a.restart(t, stack.Gateway) })
			t.Run("a role is down", a.roleDown)
			t.Run("the gateway drains", a.drain)
		})
	}
}

// do makes a unary call in the page.
func (a *application) do(t *testing.T, service, method string, request proto.Message) answer {
	t.Helper()
	encoded, err := protojson.Marshal(request)
	require.NoError(t, err)
	return call[answer](t, a.tab, "backend.call", service, method, json.RawMessage(encoded))
}

// publish sends one message and returns its sequence id.
func (a *application) publish(t *testing.T, group testkit.Group) string {
	t.Helper()
	got := a.do(t, "PublishService", "publish", &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{a.kit.GroupMessage(group, 300)}})
	require.Nil(t, got.Error, "%+v", got.Error)
	var response backendv1.PublishResponse
	require.NoError(t, protojson.Unmarshal(got.Response, &response))
	return strconv.FormatUint(response.GetEnvelopeMetas()[0].GetCursor().GetSequenceId(), 10)
}

func (a *application) follow(t *testing.T, group testkit.Group) int {
	t.Helper()
	follower := call[int](t, a.tab, "backend.follow", []byte(group.Topic()))
	t.Cleanup(func() { call[any](t, a.tab, "backend.unfollow", follower) })
	a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.Positive(c, seen.Started) })
	return follower
}

// await polls what a follower has seen.
func (a *application) await(t *testing.T, follower int, check func(c *assert.CollectT, seen followed)) followed {
	t.Helper()
	var seen followed
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		seen = call[followed](t, a.tab, "backend.followed", follower)
		check(c, seen)
	}, soon, 10*time.Millisecond)
	return seen
}

func (a *application) publishAndQuery(t *testing.T) {
	group := a.kit.Group()
	sent := a.kit.GroupMessage(group, 300)
	got := a.do(t, "PublishService", "publish", &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{sent}})
	require.Nil(t, got.Error, "%+v", got.Error)
	require.NotEmpty(t, got.RequestID, "a page can read x-request-id")

	got = a.do(t, "QueryService", "query", &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}}})
	require.Nil(t, got.Error, "%+v", got.Error)
	var page backendv1.QueryResponse
	require.NoError(t, protojson.Unmarshal(got.Response, &page))
	require.Len(t, page.GetEnvelopes(), 1)
	require.True(t, proto.Equal(sent, page.GetEnvelopes()[0].GetEnvelope()))
}

func (a *application) refusedPublish(t *testing.T) {
	broken := a.kit.Broken(time.Now())[1]
	got := a.do(t, "PublishService", "publish", &backendv1.PublishRequest{
		Envelopes: []*backendv1.ClientEnvelope{a.kit.GroupMessage(a.kit.Group(), 10), broken.Envelope}})
	require.NotNil(t, got.Error)
	require.Equal(t, "InvalidArgument", got.Error.Code, "%+v", got.Error)
	require.Len(t, got.Error.Details, 1)
	require.Equal(t, "xmtp.backend.v1.PublishError", got.Error.Details[0].Type)
	var detail backendv1.PublishError
	require.NoError(t, protojson.Unmarshal(got.Error.Details[0].Value, &detail))
	require.Equal(t, backendv1.PublishError_REASON_MALFORMED_PAYLOAD, detail.GetReason())
	require.EqualValues(t, 1, detail.GetIndex())
	require.NotEmpty(t, detail.GetMessage())
}

// followLive awaits each message before the next is sent.
func (a *application) followLive(t *testing.T) {
	group := a.kit.Group()
	before := a.publish(t, group)
	follower := a.follow(t, group)
	expected := []string{before}
	for range 5 {
		expected = append(expected, a.publish(t, group))
		a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.Equal(c, expected, seen.SequenceIDs) })
	}
	require.Equal(t, 1, call[followed](t, a.tab, "backend.followed", follower).Started)
}

// restart takes a role away and brings it back under a follower, which misses
// nothing and sees nothing twice.
func (a *application) restart(t *testing.T, role stack.Role) {
	group := a.kit.Group()
	follower := a.follow(t, group)
	expected := []string{a.publish(t, group)}
	a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.Equal(c, expected, seen.SequenceIDs) })
	require.NoError(t, a.stack.StopRole(role))
	a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.NotEmpty(c, seen.Errors) })
	if role == stack.Streamer {
		expected = append(expected, a.publish(t, group)) // while nobody delivers
	}
	require.NoError(t, a.stack.StartRole(role))
	a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.Equal(c, 2, seen.Started) })
	expected = append(expected, a.publish(t, group))
	seen := a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.Len(c, seen.SequenceIDs, len(expected)) })
	require.Equal(t, expected, seen.SequenceIDs)
	require.Equal(t, "Unavailable", seen.Errors[0].Code, "the stream ended with a status: %+v", seen.Errors[0])
	require.False(t, seen.Errors[0].Network)
}

// requests has one call for each role.
func (a *application) requests(group testkit.Group) map[stack.Role]func(t *testing.T) *failure {
	topic := &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}
	return map[stack.Role]func(t *testing.T) *failure{
		stack.Publisher: func(t *testing.T) *failure {
			return a.do(t, "PublishService", "publish", &backendv1.PublishRequest{
				Envelopes: []*backendv1.ClientEnvelope{a.kit.GroupMessage(group, 10)}}).Error
		},
		stack.Reader: func(t *testing.T) *failure {
			return a.do(t, "QueryService", "query", &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{topic}}).Error
		},
		stack.Streamer: func(t *testing.T) *failure {
			follower := call[int](t, a.tab, "backend.follow", []byte(group.Topic()))
			defer call[any](t, a.tab, "backend.unfollow", follower)
			seen := a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.True(c, seen.Started > 0 || len(seen.Errors) > 0) })
			if seen.Started > 0 {
				return nil
			}
			return &seen.Errors[0]
		},
	}
}

func requireUnavailable(t *testing.T, got *failure) {
	t.Helper()
	require.NotNil(t, got)
	require.False(t, got.Network, "the page saw a network error: %+v", got)
	require.Equal(t, "Unavailable", got.Code, "%+v", got)
	require.NotEmpty(t, got.Message)
}

func (a *application) roleDown(t *testing.T) {
	requests := a.requests(a.kit.Group())
	for _, away := range []stack.Role{stack.Publisher, stack.Reader, stack.Streamer} {
		require.NoError(t, a.stack.StopRole(away))
		for role, request := range requests {
			got := request(t)
			if role == away {
				requireUnavailable(t, got)
			} else {
				require.Nil(t, got, "%s while the %s is away: %+v", role, away, got)
			}
		}
		require.NoError(t, a.stack.StartRole(away))
		// The gateway's next attempt to connect may be off by longer than it holds calls.
		require.Eventually(t, func() bool {
			got := requests[away](t)
			if got != nil {
				requireUnavailable(t, got)
			}
			return got == nil
		}, soon, 10*time.Millisecond, "%s after its return", away)
	}
}

// drain keeps the gateway from ending by a native call that waits for a lock in
// the database, and meanwhile calls from the page. The call is a query, which
// waits 10 s for a lock; a publish gives up after three.
func (a *application) drain(t *testing.T) {
	group := a.kit.Group()
	a.publish(t, group)
	follower := a.follow(t, group)
	a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.Len(c, seen.SequenceIDs, 1) })
	unlock := a.lock(t)
	connection, err := grpc.NewClient(a.stack.Endpoints.Gateway, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer connection.Close()
	held := make(chan error, 1)
	query := &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}}}
	go func() {
		_, err := backendv1.NewQueryServiceClient(connection).Query(context.WithoutCancel(t.Context()), query)
		held <- err
	}()
	a.awaitLockWaiter(t)

	stopped := make(chan error, 1)
	go func() { stopped <- a.stack.StopRole(stack.Gateway) }()
	seen := a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.NotEmpty(c, seen.Errors) })
	requireUnavailable(t, &seen.Errors[0])
	for _, request := range a.requests(group) {
		requireUnavailable(t, request(t))
	}
	require.Empty(t, stopped, "the gateway ended although a call is under way")
	unlock()
	require.NoError(t, <-held, "the call that was under way")
	require.NoError(t, <-stopped)
	require.NoError(t, a.stack.StartRole(stack.Gateway))
	a.await(t, follower, func(c *assert.CollectT, seen followed) { assert.Equal(c, 2, seen.Started) })
}

// lock keeps queries waiting until it is undone.
func (a *application) lock(t *testing.T) (unlock func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	connection, err := pgx.Connect(ctx, a.stack.Endpoints.PrimaryURL)
	require.NoError(t, err)
	unlock = sync.OnceFunc(func() { _ = connection.Close(ctx) })
	t.Cleanup(unlock)
	_, err = connection.Exec(ctx, "BEGIN; LOCK TABLE envelopes")
	require.NoError(t, err)
	return unlock
}

func (a *application) awaitLockWaiter(t *testing.T) {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), a.stack.Endpoints.PrimaryURL)
	require.NoError(t, err)
	defer connection.Close(t.Context())
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var waiting bool
		assert.NoError(c, connection.QueryRow(t.Context(),
			"SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'envelopes'::regclass AND NOT granted)").Scan(&waiting))
		assert.True(c, waiting)
	}, soon, 10*time.Millisecond, "no query waits for the lock")
}
