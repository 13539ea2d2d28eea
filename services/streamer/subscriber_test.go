package streamer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// subscriber is a client with one bidirectional stream. A goroutine receives all
// the time and checks the order within each topic.
type subscriber struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[backendv1.SubscribeRequest, backendv1.SubscribeResponse]
	cancel context.CancelFunc
	done   chan struct{}

	mu         sync.Mutex
	changed    chan struct{} // closed at each frame
	got        map[topic.Topic][]topic.SequenceID
	total      int
	applied    map[uint64][]*backendv1.CatchupTarget
	pongs      []uint64
	disorder   string
	onEnvelope func(*backendv1.ServerEnvelope)
	silent     bool // do not answer pings
	err        error
	nextID     uint64
}

func subscribe(t testing.TB, client backendv1.SubscriptionServiceClient, options ...func(*subscriber)) *subscriber {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := client.Subscribe(ctx)
	require.NoError(t, err)
	s := &subscriber{t: t, stream: stream, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		got: map[topic.Topic][]topic.SequenceID{}, applied: map[uint64][]*backendv1.CatchupTarget{}}
	for _, o := range options {
		o(s)
	}
	first, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, first.GetStarted())
	go s.receive()
	t.Cleanup(s.close)
	return s
}

func (s *subscriber) close() {
	s.cancel()
	<-s.done
}

func (s *subscriber) receive() {
	defer close(s.done)
	for {
		frame, err := s.stream.Recv()
		s.mu.Lock()
		if err != nil {
			s.err = err
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
			return
		}
		s.take(frame)
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
	}
}

func (s *subscriber) take(frame *backendv1.SubscribeResponse) {
	switch f := frame.Response.(type) {
	case *backendv1.SubscribeResponse_Applied_:
		if _, twice := s.applied[f.Applied.Id]; twice {
			s.disorder = "an update was answered twice"
		}
		s.applied[f.Applied.Id] = f.Applied.AddedTargets
	case *backendv1.SubscribeResponse_Messages_:
		if len(f.Messages.Envelopes) == 0 {
			s.disorder = "an empty frame"
		}
		for _, e := range f.Messages.Envelopes {
			name, id := topic.Topic(e.Meta.Topic.Topic), topic.SequenceID(e.Meta.Cursor.SequenceId)
			if ids := s.got[name]; len(ids) > 0 && ids[len(ids)-1] >= id {
				s.disorder = fmt.Sprintf("sequence id %d after %d", id, ids[len(ids)-1])
			}
			s.got[name] = append(s.got[name], id)
			s.total++
			if s.onEnvelope != nil {
				s.onEnvelope(e)
			}
		}
	case *backendv1.SubscribeResponse_Pong:
		s.pongs = append(s.pongs, f.Pong.Nonce)
	case *backendv1.SubscribeResponse_Ping:
		if !s.silent {
			nonce := f.Ping.Nonce
			go s.send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Pong{Pong: &backendv1.Pong{Nonce: nonce}}})
		}
	}
}

var sendMu sync.Mutex

func (s *subscriber) send(request *backendv1.SubscribeRequest) {
	sendMu.Lock()
	defer sendMu.Unlock()
	_ = s.stream.Send(request)
}

// await blocks until the condition holds over the received frames.
func (s *subscriber) await(what string, condition func() bool) {
	s.t.Helper()
	s.awaitFor(within, what, condition)
}

func (s *subscriber) awaitFor(limit time.Duration, what string, condition func() bool) {
	s.t.Helper()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		ok, changed, err := condition(), s.changed, s.err
		disorder, total := s.disorder, s.total
		s.mu.Unlock()
		require.Empty(s.t, disorder)
		if ok {
			return
		}
		require.NoError(s.t, err, "the stream ended before: %s", what)
		select {
		case <-changed:
		case <-timeout.C:
			require.FailNow(s.t, "not within "+limit.String(), "%s; %d envelopes so far", what, total)
		}
	}
}

// awaitEnd returns the error that ended the stream.
func (s *subscriber) awaitEnd() error {
	s.t.Helper()
	select {
	case <-s.done:
		return s.err
	case <-time.After(within):
		require.FailNow(s.t, "the stream did not end")
		return nil
	}
}

func query(name topic.Topic, cursor topic.SequenceID) *backendv1.TopicQuery {
	return &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: []byte(name)}, Cursor: &backendv1.Cursor{SequenceId: uint64(cursor)}}
}

func (s *subscriber) update(adds []*backendv1.TopicQuery, removes ...topic.Topic) uint64 {
	s.nextID++
	u := &backendv1.SubscribeRequest_Update{Id: s.nextID, Adds: adds}
	for _, name := range removes {
		u.Removes = append(u.Removes, &backendv1.Topic{Topic: []byte(name)})
	}
	s.send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: u}})
	return u.Id
}

// add registers topics from the beginning and waits for Applied.
func (s *subscriber) add(names ...topic.Topic) []*backendv1.CatchupTarget {
	s.t.Helper()
	adds := make([]*backendv1.TopicQuery, len(names))
	for i, name := range names {
		adds[i] = query(name, 0)
	}
	return s.awaitApplied(s.update(adds))
}

func (s *subscriber) remove(names ...topic.Topic) {
	s.t.Helper()
	s.awaitApplied(s.update(nil, names...))
}

func (s *subscriber) awaitApplied(id uint64) (targets []*backendv1.CatchupTarget) {
	s.t.Helper()
	s.await(fmt.Sprintf("Applied %d", id), func() (ok bool) {
		targets, ok = s.applied[id]
		return ok
	})
	return targets
}

// awaitAll waits for the given envelopes, and requires that nothing else came on
// their topics.
func (s *subscriber) awaitAll(rows []stored) {
	s.t.Helper()
	s.awaitAllFor(within, rows)
}

func (s *subscriber) awaitAllFor(limit time.Duration, rows []stored) {
	s.t.Helper()
	want := map[topic.Topic][]topic.SequenceID{}
	for _, row := range rows {
		want[row.topic] = append(want[row.topic], row.id)
	}
	s.awaitFor(limit, fmt.Sprintf("%d envelopes on %d topics", len(rows), len(want)), func() bool {
		n := 0
		for name := range want {
			n += len(s.got[name])
		}
		return n >= len(rows)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, ids := range want {
		require.Equal(s.t, ids, s.got[name])
	}
}
