package streamer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// stalled are streams whose clients read up to the answer to their update and
// nothing after that.
type stalled struct {
	conn    *grpc.ClientConn
	streams []backendv1.SubscriptionService_SubscribeClient
}

const clientWindow = 64 << 10

func (r *role) stall(streams int, names ...topic.Topic) *stalled {
	r.t.Helper()
	// A client holds what it was sent and does not read, up to its window, which grows
	// unless it is fixed.
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(clientWindow), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	s := &stalled{conn: conn}
	for range streams {
		stream, err := backendv1.NewSubscriptionServiceClient(s.conn).Subscribe(r.t.Context())
		require.NoError(r.t, err)
		u := &backendv1.SubscribeRequest_Update{Id: 1}
		for _, name := range names {
			u.Adds = append(u.Adds, query(name, 0))
		}
		require.NoError(r.t, stream.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: u}}))
		for range 2 { // Started, Applied
			_, err = stream.Recv()
			require.NoError(r.t, err)
		}
		s.streams = append(s.streams, stream)
	}
	return s
}

func (m *meter) budget(name string) int64 {
	return m.Gauge("xmtp_budget_used_bytes", attribute.String("budget", name))
}

func (m *meter) sessions() int64 { return m.Count("xmtp_stream_sessions") }

// A hundred streams that nobody reads, each with more history than all of the
// budget: what lies in grpc-go counts, so that the memory of the process stays
// within the budget. Those that read are served meanwhile, and when the connection
// is gone nothing is left.
func TestStalledStreamsStayWithinTheBudget(t *testing.T) {
	m, measure := measured(t)
	const total, streams = 64 << 20, 100
	r := start(t, measure, func(c *streamer.Config, _ *streamer.Deps) {
		c.Stream.BudgetBytes = total
		c.Stream.SlowClientTimeout = time.Hour
	})
	r.writer.fill(6000, 4000, groups(0, 3)) // short ones: each frame has its copy
	before := inUse()
	slow := r.stall(streams, groups(0, 3)...)
	// The others come to rest: no more is counted from one look to the next.
	last := int64(-1)
	require.Eventually(t, func() bool {
		used := m.budget("delivery")
		rest := used == last && used > total/4
		last = used
		return rest
	}, within, 300*time.Millisecond)
	grown := int64(inUse()) - int64(before)
	t.Logf("%d MiB counted, %d MiB of memory, clients included", last>>20, grown>>20)
	require.LessOrEqual(t, last, int64(total+total/8))
	require.Less(t, grown, last+streams*2*clientWindow+(32<<20))

	s := subscribe(t, r.client)
	s.add(group(7))
	s.awaitAll(r.writer.publish(group(7)))
	old := r.writer.storeSized(4000, group(8)) // of which it hears by catching up
	s.add(group(8))
	s.awaitAll(old)

	require.NoError(t, slow.conn.Close())
	require.Eventually(t, func() bool { return m.budget("delivery") == 0 }, within, 10*time.Millisecond,
		"what grpc-go held of closed connections is given back")
}

// A client that takes nothing ends as slow also when its frame lies in grpc-go,
// where flow control holds it: the stream is over, its registrations are gone, and
// the client finds out once it reads. What grpc-go still holds counts until then.
func TestASlowClientEndsThoughFlowControlHoldsItsFrame(t *testing.T) {
	m, measure := measured(t)
	r := start(t, measure, func(c *streamer.Config, _ *streamer.Deps) {
		c.Stream.OutputBytes = 4 << 20
		c.Stream.SlowClientTimeout = 500 * time.Millisecond
	})
	r.writer.fill(3000, 4000, groups(0, 1))
	slow := r.stall(1, group(0))
	require.Eventually(t, func() bool {
		return m.Count("xmtp_stream_ended", attribute.String("reason", "exhausted")) == 1
	}, within, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		return m.sessions() == 0 && m.budget("registrations") == 0
	}, within, 10*time.Millisecond)
	require.NotZero(t, m.budget("delivery"))
	var err error
	for err == nil {
		_, err = slow.streams[0].Recv()
	}
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.Eventually(t, func() bool { return m.budget("delivery") == 0 }, within, 10*time.Millisecond)
}

// Topics beyond the bound of the process are refused with a plain word, other
// streams go on, and a stream of the largest size is always possible.
func TestRegistrationsAreBoundedInTheProcess(t *testing.T) {
	m, measure := measured(t)
	r := start(t, measure, func(c *streamer.Config, _ *streamer.Deps) {
		c.Limits.MaxStreamTopics, c.Limits.MaxUpdateAdds, c.Limits.MaxUpdateRemoves, c.Limits.MaxStaticTopics = 5000, 5000, 5000, 5000
		c.Stream.RegistrationBytes = 9 << 20
		require.NoError(t, c.Validate())
	})
	s := subscribe(t, r.client)
	s.add(group(1))
	var err error
	opened := 0
	for ; err == nil && opened < 100; opened++ {
		other := subscribe(t, r.client)
		adds := make([]*backendv1.TopicQuery, 5000)
		for i, name := range groups(opened*5000, (opened+1)*5000) {
			adds[i] = query(name, 0)
		}
		id := other.update(adds)
		for done := false; !done && err == nil; {
			other.mu.Lock()
			_, done = other.applied[id]
			err = other.err
			changed := other.changed
			other.mu.Unlock()
			if !done && err == nil {
				<-changed
			}
		}
	}
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.Contains(t, status.Convert(err).Message(), "as many topics")
	require.Greater(t, opened, 2)
	require.LessOrEqual(t, m.budget("registrations"), int64(9<<20))
	s.add(group(2)) // a modest stream goes on
	s.awaitAll(r.writer.publish(group(1), group(2)))
}
