package traffic

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
)

// conversation is one bidirectional stream. Frames are handled, and requests sent,
// by one goroutine.
type conversation struct {
	*subscriber
	log     *check.Stream
	stream  grpc.BidiStreamingClient[backendv1.SubscribeRequest, backendv1.SubscribeResponse]
	lastID  uint64
	pending map[uint64]*backendv1.SubscribeRequest_Update
	// registered has true for topics that are, and false for those under way.
	registered map[topic.Topic]bool
}

// converse opens one bidirectional stream, changes its topics at random and reads
// it to its end.
func (s *subscriber) converse(ctx context.Context, log *check.Stream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	feed, stop := s.watchdog(cancel)
	defer stop()
	stream, err := s.client.Subscribe(ctx)
	if err != nil {
		return err
	}
	c := &conversation{subscriber: s, log: log, stream: stream,
		pending: map[uint64]*backendv1.SubscribeRequest_Update{}, registered: map[topic.Topic]bool{}}
	frames, failed := make(chan *backendv1.SubscribeResponse), make(chan error, 1)
	go func() {
		for {
			frame, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case frames <- frame:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	change := time.NewTimer(0)
	defer change.Stop()
	for {
		select {
		case err := <-failed:
			return ignoreOwn(ctx, err)
		case frame := <-frames:
			feed()
			c.take(frame)
		case <-change.C:
			if c.change() {
				cancel() // the client goes away
			}
			change.Reset(200*time.Millisecond + time.Duration(s.random.IntN(2000))*time.Millisecond)
		}
	}
}

func (c *conversation) send(request *backendv1.SubscribeRequest) {
	_ = c.stream.Send(request) // a failure also ends Recv
}

func (c *conversation) take(frame *backendv1.SubscribeResponse) {
	switch f := frame.GetResponse().(type) {
	case *backendv1.SubscribeResponse_Applied_:
		c.applied(f.Applied)
	case *backendv1.SubscribeResponse_Messages_:
		c.delivered(c.log, f.Messages.GetEnvelopes())
	case *backendv1.SubscribeResponse_Ping:
		c.send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Pong{Pong: &backendv1.Pong{Nonce: f.Ping.GetNonce()}}})
	}
}

func (c *conversation) applied(applied *backendv1.SubscribeResponse_Applied) {
	update := c.pending[applied.GetId()]
	if update == nil || len(applied.GetAddedTargets()) != len(update.GetAdds()) {
		c.traffic.Recorder.surprise("%s: update %d, with %d adds, was applied with %d targets", c.name, applied.GetId(), len(update.GetAdds()), len(applied.GetAddedTargets()))
		return
	}
	delete(c.pending, applied.GetId())
	for _, name := range update.GetRemoves() {
		delete(c.registered, topic.Topic(name.GetTopic()))
		c.log.Events = append(c.log.Events, check.Event{Kind: check.Removed, Topic: topic.Topic(name.GetTopic())})
	}
	for i, target := range applied.GetAddedTargets() {
		event := registered(update.GetAdds()[i], target)
		c.registered[event.Topic] = true
		c.log.Events = append(c.log.Events, event)
	}
}

// removeShare and leaveShare are one in how many changes takes topics away, or
// closes the stream.
const (
	removeShare = 3
	leaveShare  = 15
)

// change sends an update: all wanted topics that are not registered, and at times
// a few to remove. It says whether the client leaves instead.
func (c *conversation) change() (leave bool) {
	update := &backendv1.SubscribeRequest_Update{}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.all && c.random.IntN(leaveShare) == 0 {
		return true
	}
	for _, name := range c.traffic.topics.all() {
		if !c.all && !c.wanted[name] && c.random.IntN(20) > 0 {
			continue
		}
		c.wanted[name] = true
		if _, there := c.registered[name]; !there {
			update.Adds = append(update.Adds, topicQuery(name, c.cursors[name]))
			c.registered[name] = false
		}
	}
	if !c.all && c.random.IntN(removeShare) == 0 {
		for _, name := range c.traffic.topics.all() {
			if c.registered[name] && c.random.IntN(10) == 0 {
				delete(c.wanted, name)
				c.registered[name] = false
				update.Removes = append(update.Removes, &backendv1.Topic{Topic: []byte(name)})
			}
		}
	}
	if len(update.Adds)+len(update.Removes) == 0 {
		return false
	}
	c.lastID++
	update.Id = c.lastID
	c.pending[update.Id] = update
	c.send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: update}})
	return false
}
