package streamer_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// A row of another topic that commits late must not be stepped over, and must
// not delay the others.
//
// Proves API-011.
func TestARowThatCommitsLateDelaysNoOtherTopicAndIsNotSkipped(t *testing.T) {
	r := start(t)
	s := subscribe(t, r.client)
	s.add(group(1), group(2))
	ctx := t.Context()
	tx, err := r.writer.db.Begin(ctx)
	require.NoError(t, err)
	late, err := storeIn(ctx, tx, [][]byte{payloadOf(10)}, []topic.Topic{group(2)})
	require.NoError(t, err)
	rows := r.writer.store(group(1)) // a higher sequence id, committed before, no notice
	require.Greater(t, rows[0].id, late[0].id)
	s.awaitAllFor(10*time.Second, rows)
	rows = append(rows, r.writer.publish(group(1))...)
	s.awaitAllFor(10*time.Second, rows)
	require.NoError(t, tx.Commit(ctx))
	s.awaitAllFor(10*time.Second, append(rows, late...))
}

// Proves API-015, API-097.
func TestACursorAboveTheHead(t *testing.T) {
	r := start(t)
	s := subscribe(t, r.client)
	rows := r.writer.store(group(1), group(1))
	far := rows[1].id + 2
	targets := s.awaitApplied(s.update([]*backendv1.TopicQuery{query(group(1), far)}))
	require.EqualValues(t, rows[1].id, targets[0].ThroughSequenceId)
	for range 4 {
		rows = append(rows, r.writer.publish(group(1))...)
	}
	s.awaitAll(slices.DeleteFunc(rows, func(row stored) bool { return row.id <= far }))
}

// Proves API-100.
func TestRemoveAndAddAgainStartsAnew(t *testing.T) {
	r := start(t)
	s := subscribe(t, r.client)
	rows := r.writer.store(group(1), group(1))
	s.add(group(1))
	s.awaitAll(rows)
	s.remove(group(1))
	missed := r.writer.publish(group(1))
	s.mu.Lock()
	s.got = map[topic.Topic][]topic.SequenceID{}
	s.mu.Unlock()
	targets := s.add(group(1))
	require.EqualValues(t, missed[0].id, targets[0].ThroughSequenceId)
	s.awaitAll(append(rows, missed...))
}

// A stream that joins topics while they are written to must become current on
// each, and stay open.
//
// Proves API-096.
func TestJoiningTopicsUnderSteadyLoad(t *testing.T) {
	r := start(t)
	names := groups(0, 20)
	stop := make(chan struct{})
	var all []stored
	var mu sync.Mutex
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			rows := r.writer.publish(names...)
			mu.Lock()
			all = append(all, rows...)
			mu.Unlock()
		}
	})
	s := subscribe(t, r.client)
	for i := range names {
		s.add(names[i])
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(all) > 2000
	}, within, 10*time.Millisecond)
	close(stop)
	writing.Wait()
	s.awaitAll(all)
}

func TestABurstDoesNotEndTheStreamOfAClientThatReads(t *testing.T) {
	burst := 100_000
	if testing.Short() {
		burst = 20_000
	}
	r := start(t)
	s := subscribe(t, r.client)
	names := groups(0, 10)
	s.add(names...)
	var all []stored
	for len(all) < burst {
		batch := make([]topic.Topic, 2000)
		for i := range batch {
			batch[i] = names[i%len(names)]
		}
		all = append(all, r.writer.storeSized(200, batch...)...)
	}
	r.writer.announce(all...)
	s.awaitAllFor(time.Minute, all)
}

func TestAnEnvelopeOfTheMaximumSize(t *testing.T) {
	r := start(t)
	s := subscribe(t, r.client)
	s.add(group(1), group(2))
	var all []stored
	for range 3 {
		rows := r.writer.storeSized(1<<20-100, group(1), group(2), group(1))
		for i := range rows {
			r.writer.send(&rows[i], false) // too long for a notice
		}
		all = append(all, rows...)
	}
	s.awaitAll(all)
}

// One client that reads nothing must not delay the others, and must not make
// memory grow.
//
// Proves I9.
func TestAClientThatNeverReadsDelaysNobody(t *testing.T) {
	r := start(t, func(c *streamer.Config, _ *streamer.Deps) { c.Stream.NoticeBytes = 8 << 20 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck, err := backendv1.NewSubscriptionServiceClient(dial(t, r.address)).Subscribe(ctx)
	require.NoError(t, err)
	_, err = stuck.Recv()
	require.NoError(t, err)
	require.NoError(t, stuck.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{
		Update: &backendv1.SubscribeRequest_Update{Id: 1, Adds: []*backendv1.TopicQuery{query(group(1), 0)}}}}))
	_, err = stuck.Recv()
	require.NoError(t, err)
	s := subscribe(t, r.client)
	s.add(group(1))
	before := inUse()
	var all []stored
	for range 150 { // MiB
		all = append(all, r.writer.publish1M(group(1))...)
	}
	s.awaitAllFor(time.Minute, all)
	require.Less(t, int64(inUse())-int64(before), int64(100<<20))
}

func (w *writer) publish1M(name topic.Topic) []stored {
	names := make([]topic.Topic, 20)
	for i := range names {
		names[i] = name
	}
	rows := w.storeSized(50<<10, names...)
	w.announce(rows...)
	for i := range rows {
		rows[i].payload = nil // what the test itself holds is not measured
	}
	return rows
}

// Proves API-092, API-094, API-145, I8.
func TestTheBoundOnTopicsOfAStream(t *testing.T) {
	r := start(t)
	names := groups(0, 100_001)
	r.writer.fill(1000, 32, names[:1000])
	s := subscribe(t, r.client)
	adds := make([]*backendv1.TopicQuery, 100_000)
	for i := range adds {
		adds[i] = query(names[i], 1<<40)
	}
	begun := time.Now()
	require.Len(t, s.awaitApplied(s.update(adds)), 100_000)
	t.Logf("Applied for 100,000 topics after %v", time.Since(begun))
	s.remove(names[99_999])
	s.add(names[100_000])
	at := time.Now()
	s.awaitAll(r.writer.publish(names[100_000]))
	t.Logf("live after %v", time.Since(at))
	s.update([]*backendv1.TopicQuery{query(names[99_999], 0)})
	require.Equal(t, codes.InvalidArgument, status.Code(s.awaitEnd()))
}

func TestShutdownEndsStreamsAtOnce(t *testing.T) {
	r := start(t)
	s := subscribe(t, r.client)
	s.add(group(1))
	begun := time.Now()
	r.stop()
	require.Equal(t, codes.Unavailable, status.Code(s.awaitEnd()))
	require.Less(t, time.Since(begun), 5*time.Second)
}

// Proves API-108.
func TestHalfCloseIsOK(t *testing.T) {
	r := start(t)
	r.writer.fill(2000, 1024, groups(0, 10))
	s := subscribe(t, r.client)
	s.add(groups(0, 10)...)
	require.NoError(t, s.stream.CloseSend())
	require.ErrorContains(t, s.awaitEnd(), "EOF")
}

// A transaction that is rolled back leaves a gap that nobody waits for.
//
// Proves API-013.
func TestAGapInSequenceIDs(t *testing.T) {
	r := start(t)
	s := subscribe(t, r.client)
	s.add(group(1))
	rows := r.writer.publish(group(1))
	require.ErrorContains(t, pgx.BeginFunc(t.Context(), r.writer.db, func(tx pgx.Tx) error {
		_, err := storeIn(t.Context(), tx, [][]byte{payloadOf(10)}, []topic.Topic{group(1)})
		require.NoError(t, err)
		return context.Canceled
	}), "canceled")
	rows = append(rows, r.writer.publish(group(1))...)
	s.awaitAll(rows)
}
