package streamer_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// ownCluster is a migrated primary and replica that the test may break.
func ownCluster(t *testing.T) (primary, replica *pglocal.Server) {
	t.Helper()
	primary, replica = pgtest.OwnCluster(t, map[string]string{"fsync": "off"})
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	pgtest.WaitReplayed(t, primary, replica)
	return primary, replica
}

// TestNothingIsLostWhateverBreaks publishes on 1,000 topics to 50 streams while a
// tenth of the notices is lost, others are repeated and reordered, the bus is
// restarted, the replica stands still for 5 s and a publisher dies between
// commit and notice. Then every stream's log is the table's (I5, I6).
//
// Proves API-112, I6.
func TestNothingIsLostWhateverBreaks(t *testing.T) {
	envelopes := 100_000
	if testing.Short() {
		envelopes = 20_000
	}
	const topics, streams, batch = 1000, 50, 1000
	primary, replica := ownCluster(t)
	r := startOn(t, replica.URL("postgres"), primary.URL("postgres"), newBus(t))
	random := rand.New(rand.NewPCG(1, 2))
	names := groups(0, topics)
	subscribers := make([]*subscriber, 0, streams)
	join := func() {
		s := subscribe(t, r.client)
		first := len(subscribers) * topics / streams
		s.add(names[first : first+topics/streams]...)
		subscribers = append(subscribers, s)
	}
	var all []stored
	resumed := make(chan error, 1)
	paused := false
	for n := range envelopes / batch {
		for len(subscribers) < streams && len(subscribers) <= n*16 {
			join() // the later ones have history
		}
		rows := r.writer.store(randomTopics(random, names, batch)...)
		all = append(all, rows...)
		switch n * 10 / (envelopes / batch) {
		case 2:
			if n%5 == 0 {
				require.NoError(t, r.bus.Restart())
			}
		case 4:
			if !paused {
				paused = true
				require.NoError(t, replica.Pause())
				time.AfterFunc(5*time.Second, func() { resumed <- replica.Resume() })
			}
		case 6:
			continue // it died before its notices
		}
		announceBadly(r.writer, random, rows)
	}
	require.NoError(t, <-resumed)
	for len(subscribers) < streams {
		join()
	}
	for i, s := range subscribers {
		mine := map[topic.Topic]bool{}
		for _, name := range names[i*topics/streams : (i+1)*topics/streams] {
			mine[name] = true
		}
		var want []stored
		for _, row := range all {
			if mine[row.topic] {
				want = append(want, row)
			}
		}
		s.awaitAllFor(2*time.Minute, want)
	}
}

func randomTopics(random *rand.Rand, names []topic.Topic, n int) []topic.Topic {
	out := make([]topic.Topic, n)
	for i := range out {
		out[i] = names[random.IntN(len(names))]
	}
	return out
}

// announceBadly loses a tenth, repeats some and swaps neighbours.
func announceBadly(w *writer, random *rand.Rand, rows []stored) {
	order := make([]int, 0, len(rows))
	for i := range rows {
		switch random.IntN(20) {
		case 0, 1:
		case 2:
			order = append(order, i, i)
		default:
			order = append(order, i)
		}
	}
	for i := 1; i < len(order); i += 2 {
		if random.IntN(4) == 0 {
			order[i-1], order[i] = order[i], order[i-1]
		}
	}
	for _, i := range order {
		w.send(&rows[i], true)
	}
}

func TestARestartedReplicaKeepsStreams(t *testing.T) {
	primary, replica := ownCluster(t)
	r := startOn(t, replica.URL("postgres"), primary.URL("postgres"), newBus(t))
	s := subscribe(t, r.client)
	s.add(group(1))
	rows := r.writer.publish(group(1))
	s.awaitAll(rows)
	require.NoError(t, replica.Stop(pglocal.Immediate))
	rows = append(rows, r.writer.publish(group(1))...) // links: needs no database
	s.awaitAll(rows)
	rows = append(rows, r.writer.store(group(1))...) // nobody says so
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		other, err := r.client.Subscribe(ctx)
		require.NoError(t, err)
		_, err = other.Recv()
		return status.Code(err) == codes.Unavailable
	}, within, 50*time.Millisecond, "new streams are refused without a database")
	require.NoError(t, replica.Start(t.Context()))
	s.awaitAll(rows)
	rows = append(rows, r.writer.publish(group(1))...)
	s.awaitAll(rows)
	s.add(group(2))
}

// The same name leads to another replica, which is behind: floors are ahead of
// what it shows, and it must be read from where it stands.
func TestAnotherReplicaThatIsBehind(t *testing.T) {
	primary, first := ownCluster(t)
	second := pgtest.OwnReplica(t, primary, nil)
	proxy := newProxy(t, first.Port())
	r := startOn(t, proxy.url(first.URL("postgres")), primary.URL("postgres"), newBus(t))
	s := subscribe(t, r.client)
	s.add(group(1))
	rows := r.writer.store(group(1))
	s.awaitAll(rows)
	pgtest.WaitReplayed(t, primary, second)
	replay(t, second, false)
	rows = append(rows, r.writer.store(group(1), group(1))...)
	s.awaitAll(rows)
	proxy.lead(second.Port())
	require.EqualValues(t, rows[0].id, r.target(group(1)), "the second replica is behind")
	rows = append(rows, r.writer.store(group(1))...)
	replay(t, second, true)
	s.awaitAll(rows)
}

// target is the catch-up target that a static stream gets, as soon as there is a
// database that answers.
func (r *role) target(name topic.Topic) (through uint64) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		ctx, cancel := context.WithTimeout(r.t.Context(), within/6)
		defer cancel()
		stream, err := r.client.SubscribeStatic(ctx, &backendv1.SubscribeStaticRequest{Topics: []*backendv1.TopicQuery{query(name, 0)}})
		require.NoError(r.t, err)
		first, err := stream.Recv()
		if err != nil {
			require.Contains(r.t, []codes.Code{codes.Unavailable, codes.DeadlineExceeded}, status.Code(err), "%v", err)
			return false
		}
		through = first.GetStarted().GetTargets()[0].ThroughSequenceId
		return true
	}, within, 20*time.Millisecond)
	return through
}

func TestAPromotedReplicaEndsStreams(t *testing.T) {
	primary, replica := ownCluster(t)
	r := startOn(t, replica.URL("postgres"), primary.URL("postgres"), newBus(t))
	s := subscribe(t, r.client)
	s.add(group(1))
	s.awaitAll(r.writer.publish(group(1)))
	require.NoError(t, primary.Stop(pglocal.Immediate))
	require.NoError(t, replica.Promote(t.Context()))
	require.Equal(t, codes.Unavailable, status.Code(s.awaitEnd()))
	// Its own lineage serves new streams, and its notices count.
	r.waitServing()
	w := newWriter(t, replica.URL("postgres"), r.bus.URL())
	require.NotEqual(t, r.writer.lineage, w.lineage)
	again := subscribe(t, r.client)
	again.add(group(2))
	again.awaitAll(w.publish(group(2)))
}

// While a transaction stays open in another database, the window of the sweep
// stands still. Without notices, what is stored must come within two seconds
// all the same, and none of it may wait for the transaction.
func TestATransactionHeldOpenElsewhere(t *testing.T) {
	t.Parallel() // it waits most of the time
	primary, replica := ownCluster(t)
	r := startOn(t, replica.URL("postgres"), primary.URL("postgres"), newBus(t))
	s := subscribe(t, r.client)
	s.add(group(1))
	conn, err := pgx.Connect(t.Context(), primary.URL("template1"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), "BEGIN")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT pg_current_xact_id()")
	require.NoError(t, err)
	held := time.Minute
	if testing.Short() {
		held = 10 * time.Second
	}
	var rows []stored
	var took []time.Duration
	for begun := time.Now(); time.Since(begun) < held; {
		at := time.Now()
		rows = append(rows, r.writer.store(group(1))...)
		s.awaitAll(rows) // while the transaction is open
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	t.Logf("%d envelopes, half of them within %v, the slowest after %v", len(rows), took[len(took)/2], took[len(took)-1])
	// A busy machine delays one or another beyond what any sweep can do about it.
	require.Less(t, took[len(took)*9/10], 2*time.Second)
}

func replay(t *testing.T, replica *pglocal.Server, on bool) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), replica.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	sql := "SELECT pg_wal_replay_pause()"
	if on {
		sql = "SELECT pg_wal_replay_resume()"
	}
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}
