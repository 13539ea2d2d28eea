package replay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// delivery is an envelope and when it came.
type delivery struct {
	envelope *backendv1.ServerEnvelope
	at       time.Time
}

func (d delivery) position() position {
	meta := d.envelope.GetMeta()
	return position{topic.Topic(meta.GetTopic().GetTopic()), topic.SequenceID(meta.GetCursor().GetSequenceId())}
}

// follower is a client of one bidirectional stream: it answers pings, keeps its
// place on every topic, and opens the stream again when the server ends it
// (API-102).
type follower struct {
	client  backendv1.SubscriptionServiceClient
	topics  []topic.Topic
	targets map[topic.Topic]topic.SequenceID
	done    chan struct{}

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when something was received
	cursors  map[topic.Topic]topic.SequenceID
	received []delivery
	seen     map[position]bool
	failure  error
}

// reopenPause keeps a server that is away from being asked without a pause.
const reopenPause = 50 * time.Millisecond

// follow subscribes to the topics from their beginning and returns when the
// server has applied that.
func follow(ctx context.Context, connection grpc.ClientConnInterface, topics []topic.Topic) (*follower, error) {
	f := &follower{
		client: backendv1.NewSubscriptionServiceClient(connection), topics: topics, targets: map[topic.Topic]topic.SequenceID{},
		done: make(chan struct{}), changed: make(chan struct{}), cursors: map[topic.Topic]topic.SequenceID{}, seen: map[position]bool{},
	}
	stream, err := f.open(ctx, f.targets)
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	go f.run(ctx, stream)
	return f, nil
}

// open subscribes from the cursors that the follower has reached.
func (f *follower) open(ctx context.Context, targets map[topic.Topic]topic.SequenceID) (backendv1.SubscriptionService_SubscribeClient, error) {
	stream, err := f.client.Subscribe(ctx)
	if err != nil {
		return nil, err
	}
	update := &backendv1.SubscribeRequest_Update{Id: 1}
	f.mu.Lock()
	for _, name := range f.topics {
		update.Adds = append(update.Adds, &backendv1.TopicQuery{
			Topic:  &backendv1.Topic{Topic: []byte(name)},
			Cursor: &backendv1.Cursor{SequenceId: uint64(f.cursors[name])},
		})
	}
	f.mu.Unlock()
	started, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if started.GetStarted() == nil {
		return nil, fmt.Errorf("the first frame is %T, expected Started", started.GetResponse())
	}
	if err := stream.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: update}}); err != nil {
		return nil, err
	}
	for {
		frame, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		switch content := frame.GetResponse().(type) {
		case *backendv1.SubscribeResponse_Applied_:
			for _, target := range content.Applied.GetAddedTargets() {
				targets[topic.Topic(target.GetTopic().GetTopic())] = topic.SequenceID(target.GetThroughSequenceId())
			}
			return stream, nil
		case *backendv1.SubscribeResponse_Ping:
		default:
			return nil, fmt.Errorf("got %T before Applied", content)
		}
	}
}

func (f *follower) run(ctx context.Context, stream backendv1.SubscriptionService_SubscribeClient) {
	defer close(f.done)
	for {
		err := f.receive(stream)
		for err != nil && ctx.Err() == nil && status.Code(err) == codes.Unavailable {
			time.Sleep(reopenPause)
			stream, err = f.open(ctx, map[topic.Topic]topic.SequenceID{})
		}
		if err != nil {
			f.mu.Lock()
			f.failure = err
			f.wake()
			f.mu.Unlock()
			return
		}
	}
}

func (f *follower) receive(stream backendv1.SubscriptionService_SubscribeClient) error {
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		at := time.Now()
		switch content := frame.GetResponse().(type) {
		case *backendv1.SubscribeResponse_Ping:
			pong := &backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Pong{Pong: &backendv1.Pong{Nonce: content.Ping.GetNonce()}}}
			if err := stream.Send(pong); err != nil {
				return err
			}
		case *backendv1.SubscribeResponse_Messages_:
			f.mu.Lock()
			for _, envelope := range content.Messages.GetEnvelopes() {
				d := delivery{envelope, at}
				f.received = append(f.received, d)
				f.seen[d.position()] = true
				f.cursors[d.position().topic] = d.position().sequenceID
			}
			f.wake()
			f.mu.Unlock()
		}
	}
}

// wake tells awaitAll to look again; the caller holds mu.
func (f *follower) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// awaitAll returns when every published envelope was received.
func (f *follower) awaitAll(ctx context.Context, published map[position]*sent, timeout time.Duration) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		f.mu.Lock()
		missing := ""
		count := 0
		for at, origin := range published {
			if !f.seen[at] {
				missing = origin.item.Name
				count++
			}
		}
		changed, failure := f.changed, f.failure
		f.mu.Unlock()
		switch {
		case count == 0:
			return nil
		case failure != nil:
			return fmt.Errorf("the stream ended with %d envelopes missing: %w", count, failure)
		}
		select {
		case <-changed:
		case <-deadline.C:
			return fmt.Errorf("%d envelopes were not delivered within %v after the last publish, %s among them", count, timeout, missing)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stop waits until the stream has ended, which the caller has cancelled, and
// returns everything that came over it.
func (f *follower) stop() []delivery {
	<-f.done
	return f.received
}
