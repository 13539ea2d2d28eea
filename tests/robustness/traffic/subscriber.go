package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
)

// subscriber is a client with one stream at a time, which it opens again from its
// cursors whenever the stream ends.
type subscriber struct {
	traffic *Traffic
	client  backendv1.SubscriptionServiceClient
	random  *rand.Rand
	name    string
	static  bool
	opened  int

	mu      sync.Mutex
	all     bool // wants every topic, for the settling
	restart context.CancelFunc
	cursors map[topic.Topic]topic.SequenceID
	wanted  map[topic.Topic]bool
}

const reopenPause = 100 * time.Millisecond

func newSubscriber(t *Traffic, conn *grpc.ClientConn, i int, static bool) *subscriber {
	s := &subscriber{
		traffic: t, client: backendv1.NewSubscriptionServiceClient(conn), random: t.random("stream", i), static: static,
		name:    fmt.Sprintf("stream %d", i),
		cursors: map[topic.Topic]topic.SequenceID{}, wanted: map[topic.Topic]bool{},
	}
	for _, name := range t.topics.all() {
		if s.random.IntN(2) == 0 {
			s.wanted[name] = true
		}
	}
	return s
}

// wantAll makes the subscriber take every topic and keep it.
func (s *subscriber) wantAll() {
	s.mu.Lock()
	s.all = true
	for _, name := range s.traffic.topics.all() {
		s.wanted[name] = true
	}
	restart := s.restart
	s.mu.Unlock()
	if restart != nil {
		restart()
	}
}

// behind counts the topics whose head was not reached and names one.
func (s *subscriber) behind(heads map[topic.Topic]topic.SequenceID) (missing int, example topic.Topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, head := range heads {
		if s.cursors[name] < head {
			missing++
			example = name
		}
	}
	return missing, example
}

// run opens streams until ctx ends.
func (s *subscriber) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.opened++
		log := check.Stream{Name: fmt.Sprintf("%s, opened %d times", s.name, s.opened)}
		attempt, cancel := context.WithCancel(ctx)
		s.mu.Lock()
		s.restart = cancel
		settling := s.all
		s.mu.Unlock()
		var err error
		if s.static {
			err = s.follow(attempt, &log)
		} else {
			err = s.converse(attempt, &log)
		}
		s.mu.Lock()
		s.restart = nil
		s.mu.Unlock()
		cancel()
		// Who is stopped while settling has waited for everything.
		log.Drained = settling && ctx.Err() != nil && len(log.Events) > 0
		s.traffic.Recorder.stream(log)
		if err != nil && attempt.Err() == nil {
			s.traffic.Recorder.failed(map[bool]string{false: "Subscribe", true: "SubscribeStatic"}[s.static], err)
		}
		sleep(ctx, reopenPause)
	}
}

// delivered notes envelopes and moves the cursors.
func (s *subscriber) delivered(log *check.Stream, envelopes []*backendv1.ServerEnvelope) {
	if len(envelopes) == 0 {
		s.traffic.Recorder.surprise("%s got an empty frame", s.name)
	}
	for _, e := range envelopes {
		seen := envelopeOf(e)
		log.Events = append(log.Events, check.Event{Kind: check.Delivered, Topic: seen.Meta.Topic, Envelope: seen})
		s.mu.Lock()
		s.cursors[seen.Meta.Topic] = max(s.cursors[seen.Meta.Topic], seen.Meta.SequenceID)
		s.mu.Unlock()
	}
}

// watchdog calls cancel when it is not fed for the longest silence.
func (s *subscriber) watchdog(cancel context.CancelFunc) (feed, stop func()) {
	timer := time.AfterFunc(s.traffic.config.Silence, cancel)
	return func() { timer.Reset(s.traffic.config.Silence) }, func() { timer.Stop() }
}

// follow opens one static stream and reads it to its end.
func (s *subscriber) follow(ctx context.Context, log *check.Stream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	feed, stop := s.watchdog(cancel)
	defer stop()
	request := &backendv1.SubscribeStaticRequest{}
	s.mu.Lock()
	settling := s.all
	for _, name := range s.traffic.topics.all() {
		if s.all || s.random.IntN(3) > 0 {
			request.Topics = append(request.Topics, topicQuery(name, s.cursors[name]))
		}
	}
	s.mu.Unlock()
	if len(request.Topics) == 0 {
		return nil
	}
	if !settling { // replaced from time to time, as a client does to change topics
		defer time.AfterFunc(time.Second+time.Duration(s.random.IntN(10_000))*time.Millisecond, cancel).Stop()
	}
	stream, err := s.client.SubscribeStatic(ctx, request)
	if err != nil {
		return err
	}
	for {
		frame, err := stream.Recv()
		if err != nil {
			return ignoreOwn(ctx, err)
		}
		feed()
		switch f := frame.GetResponse().(type) {
		case *backendv1.SubscribeStaticResponse_Started_:
			if len(f.Started.GetTargets()) != len(request.Topics) || len(log.Events) > 0 {
				s.traffic.Recorder.surprise("%s: Started has %d targets for %d topics, after %d events", s.name, len(f.Started.GetTargets()), len(request.Topics), len(log.Events))
				return nil
			}
			for i, target := range f.Started.GetTargets() {
				log.Events = append(log.Events, registered(request.Topics[i], target))
			}
		case *backendv1.SubscribeStaticResponse_Messages_:
			s.delivered(log, f.Messages.GetEnvelopes())
		}
	}
}

func registered(asked *backendv1.TopicQuery, target *backendv1.CatchupTarget) check.Event {
	return check.Event{
		Kind: check.Registered, Topic: topic.Topic(target.GetTopic().GetTopic()),
		Cursor: topic.SequenceID(asked.GetCursor().GetSequenceId()), Target: topic.SequenceID(target.GetThroughSequenceId()),
	}
}

// ignoreOwn hides the error of a stream that this client ended.
func ignoreOwn(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}
