package streamer_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// Ways in which live backends of this protocol fail their users, a test each; the
// rest are in rules_test.go.

// With a replica that lags by a steady 50 ms and one notice in a thousand lost,
// streams stay live: a stream that lost one notice does not read from the
// database ever after. It counts, it takes no time.
func TestALaggingReplicaAndLostNoticesKeepStreamsLive(t *testing.T) {
	t.Parallel() // it keeps a pace
	primary := pgtest.OwnPrimary(t, map[string]string{"fsync": "off"})
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	replica := pgtest.OwnReplica(t, primary, map[string]string{"recovery_min_apply_delay": "50ms"})
	pgtest.WaitReplayed(t, primary, replica)
	sent, option := measured(t)
	r := startOn(t, replica.URL("postgres"), primary.URL("postgres"), newBus(t), option)
	// Each topic has an envelope every 40 ms: less than the lag, so that a stream
	// that only read would stay behind for ever.
	const topics, batch = 32, 4
	names := groups(0, topics)
	s := subscribe(t, r.client)
	s.add(names...)
	envelopes := 20_000
	if testing.Short() {
		envelopes = 4_000
	}
	pace := time.NewTicker(40 * time.Millisecond * batch / topics)
	defer pace.Stop()
	var all []stored
	var live, read int64
	// share is how many of a hundred envelopes went out straight from notices.
	share := func() float64 {
		random := rand.New(rand.NewPCG(1, 2))
		lost, before, beforeLive, beforeRead := 0, len(all), live, read
		for len(all) < before+envelopes {
			<-pace.C
			first := len(all) % topics
			rows := r.writer.store(names[first : first+batch]...)
			all = append(all, rows...)
			for i := range rows {
				if random.IntN(1000) == 0 {
					lost++
					continue
				}
				r.writer.send(&rows[i], true)
			}
		}
		s.awaitAllFor(2*time.Minute, all)
		live, read = sent.awaitSent(len(all))
		t.Logf("%d live and %d from the database, %d notices lost", live-beforeLive, read-beforeRead, lost)
		require.NotZero(t, lost)
		require.GreaterOrEqual(t, read-beforeRead, int64(lost), "what no notice announced was read")
		return float64(live-beforeLive) * 100 / float64(envelopes)
	}
	// A busy machine that holds notices up for longer than the replica lags has
	// their envelopes read. A streamer that reads too much does so each time.
	best := share()
	for range 2 {
		if best < 99 {
			best = max(best, share())
		}
	}
	require.GreaterOrEqual(t, best, 99.0)
}

// A stream that caught up goes on with what is stored later, without being opened
// again, also after the bus was away.
func TestAStreamThatCaughtUpGoesOn(t *testing.T) {
	sent, option := measured(t)
	r := start(t, option)
	rows := r.writer.store(group(1), group(1), group(2))
	s := subscribe(t, r.client)
	s.add(group(1), group(2))
	s.awaitAll(rows)
	live, read := sent.awaitSent(len(rows))
	require.Zero(t, live)
	require.EqualValues(t, 3, read)
	for range 3 {
		rows = append(rows, r.writer.publish(group(1), group(2))...)
		s.awaitAll(rows)
	}
	r.bus.Stop()
	rows = append(rows, r.writer.publish(group(1), group(2))...) // the sweep finds them
	s.awaitAll(rows)
	require.NoError(t, r.bus.Restart())
	before, _ := sent.awaitSent(len(rows))
	require.Eventually(t, func() bool { // live again once both ends have found the bus
		rows = append(rows, r.writer.publish(group(1), group(2))...)
		s.awaitAll(rows)
		live, _ = sent.awaitSent(len(rows))
		return live > before
	}, within, 10*time.Millisecond, "the stream never became live again")
}

// One stream with 100,000 topics that joins, leaves and joins again loses nothing
// for the others, and they lose nothing for it.
//
// Proves API-105.
func TestASubscriberWithManyTopicsTakesNothingFromOthers(t *testing.T) {
	many := 100_000
	if testing.Short() {
		many = 10_000
	}
	r := start(t)
	names := groups(0, many)
	shared := names[:200] // what the others have, and the large one too
	others := make([]*subscriber, 10)
	for i := range others {
		others[i] = subscribe(t, r.client)
		others[i].add(shared[i*20 : (i+1)*20]...)
	}
	var all []stored
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for {
			select {
			case <-stop:
				return
			case <-pace.C:
				all = append(all, r.writer.publish(randomTopics(random, shared, 5)...)...)
			}
		}
	})
	gone := subscribe(t, r.client)
	gone.add(names...)
	gone.remove(names[many/2:]...)
	gone.close() // with half of them
	large := subscribe(t, r.client)
	large.add(names...)
	close(stop)
	writing.Wait()
	all = append(all, r.writer.publish(shared...)...)
	for i, s := range others {
		s.awaitAllFor(2*time.Minute, of(all, shared[i*20:(i+1)*20]))
	}
	large.awaitAllFor(2*time.Minute, all)
	t.Logf("%d envelopes", len(all))
}

// of selects the envelopes of topics.
func of(rows []stored, names []topic.Topic) []stored {
	return slices.DeleteFunc(slices.Clone(rows), func(row stored) bool { return !slices.Contains(names, row.topic) })
}

// A stream without traffic stays open as long as its client answers, and ends as
// soon as it does not: neither side waits for ever for one that is gone.
//
// Proves API-099.
func TestAStreamWithoutTrafficIsWatched(t *testing.T) {
	r := start(t, func(c *streamer.Config, _ *streamer.Deps) {
		c.Limits.KeepaliveInterval, c.Stream.PongTimeout = 50*time.Millisecond, 3*time.Second
	})
	answers, silent := subscribe(t, r.client), subscribe(t, r.client, func(s *subscriber) { s.silent = true })
	answers.add(group(1))
	silent.add(group(1))
	static, err := r.client.SubscribeStatic(t.Context(), &backendv1.SubscribeStaticRequest{Topics: []*backendv1.TopicQuery{query(group(1), 0)}})
	require.NoError(t, err)
	for range 3 {
		frame, err := static.Recv()
		require.NoError(t, err)
		require.Nil(t, frame.GetMessages())
	}
	require.Equal(t, codes.DeadlineExceeded, status.Code(silent.awaitEnd()))
	answers.awaitAll(r.writer.publish(group(1)))
}
