package stream

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// session is one open stream. An idle one costs the goroutine of its handler
// and, if it is bidirectional, the one that receives; who sends runs only while
// there is something to send.
type session struct {
	hub       *Hub
	transport grpc.ServerStream
	delivery  *delivery.Session
	kind      metric.MeasurementOption
	fields    map[delivery.Kind]protowire.Number
	alive     keepalive
	room      chan struct{} // an update may be tried again
	read      account       // heads of topics

	connection *watched // nil if it tells nothing
	left       bool     // closed, and kept by connection; guarded by Hub.mu

	once  sync.Once
	ended chan struct{}
	err   error // set before ended is closed
	// begun is closed when the transport took Started.
	begun chan struct{}
}

// open adds a session to the engine.
func (h *Hub) open(transport grpc.ServerStream, kind metric.MeasurementOption, fields map[delivery.Kind]protowire.Number) (*session, error) {
	s := &session{
		hub: h, transport: transport, kind: kind, fields: fields,
		connection: connectionOf(transport.Context()),
		room:       make(chan struct{}, 1), ended: make(chan struct{}), begun: make(chan struct{}),
	}
	connected := false
	h.do(func(engine *delivery.Engine) {
		if connected = engine.Connected(); connected {
			s.delivery = engine.Open(s)
		}
	})
	if !connected {
		return nil, fault.Errorf(fault.Unavailable, "the stream's database is not reachable at the moment")
	}
	h.meter.opened(kind)
	return s, nil
}

// end lets the handler return with err. Only the first call counts.
func (s *session) end(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.ended)
	})
}

// wait returns when the session has ended, with its error.
func (s *session) wait() error {
	select {
	case <-s.ended:
	case <-s.transport.Context().Done():
		s.end(context.Cause(s.transport.Context()))
		<-s.ended
	}
	return s.err
}

var errEnded = fault.Errorf(fault.Cancelled, "the stream has ended")

// close removes the session. The goroutine that sends may be inside the
// transport still; it comes back when the handler has returned.
func (s *session) close() {
	s.end(errEnded)
	s.alive.stop()
	for more := true; more; {
		s.hub.do(func(engine *delivery.Engine) { more = engine.Close(s.delivery) })
		runtime.Gosched() // whoever waits for the engine goes first
	}
	s.hub.meter.ended(s.kind, s.err)
	gone := false
	s.hub.do(func(engine *delivery.Engine) {
		if s.delivery.IsOwed() {
			s.left = s.connection.keep(s)
			gone = !s.left
		}
	})
	if gone {
		s.dropped()
	}
}

// dropped is for a closed session whose transport is gone.
func (s *session) dropped() {
	s.hub.do(func(engine *delivery.Engine) { engine.Dropped(s.delivery) })
}

// control queues a frame without envelopes.
func (s *session) control(f *delivery.Frame) {
	s.hub.do(func(engine *delivery.Engine) { engine.Control(s.delivery, f) })
}

// send hands frames to the transport until there are none.
func (s *session) send() {
	defer s.hub.running.Done()
	for {
		var f *delivery.Frame
		s.hub.do(func(engine *delivery.Engine) { f = engine.Next(s.delivery) })
		if f == nil {
			return
		}
		counted := s.hub.meter.figure(f)
		if err := s.transport.SendMsg(s.encode(f)); err != nil {
			s.end(err)
			return
		}
		s.hub.meter.sent(s.transport.Context(), counted)
		s.sent(f)
	}
}

// sent notes what the transport took.
func (s *session) sent(f *delivery.Frame) {
	if f.Kind == delivery.Started {
		s.alive.start(s)
		close(s.begun)
		return
	}
	s.alive.sent(f)
}

// apply carries out a valid update. An error ends the session.
func (s *session) apply(u delivery.Update) error {
	for begun := false; ; {
		s.hub.do(func(engine *delivery.Engine) { begun = engine.Begin(s.delivery, u) })
		if begun {
			break
		}
		select {
		case <-s.room:
		case <-s.ended:
			return s.err
		}
	}
	for {
		var progress delivery.Progress
		var failure *fault.Error
		s.hub.do(func(engine *delivery.Engine) { progress, failure = engine.Step(s.delivery) })
		runtime.Gosched() // whoever waits for the engine goes first
		switch {
		case failure != nil:
			return failure
		case progress == delivery.Done:
			return nil
		case progress == delivery.NeedHeads:
			if err := s.readHeads(); err != nil {
				return err
			}
		}
	}
}

// headTopics is the most topics of one read of heads: few enough for the time limit
// of a statement when none of them is in memory.
const headTopics = 1000

// readHeads reads the targets of an update. Each is read after its registration,
// which is what makes it a target; they need not be of one snapshot.
func (s *session) readHeads() error {
	s.hub.mu.Lock()
	names, ended := s.delivery.Pending()
	s.hub.mu.Unlock()
	if ended != nil {
		return ended
	}
	heads := make([]topic.SequenceID, 0, len(names))
	for part := range slices.Chunk(names, headTopics) {
		read, err := s.readSomeHeads(part)
		if err != nil {
			return err
		}
		heads = append(heads, read...)
	}
	s.hub.do(func(engine *delivery.Engine) { engine.Heads(s.delivery, heads) })
	return nil
}

func (s *session) readSomeHeads(names []topic.Topic) ([]topic.SequenceID, error) {
	ctx := s.transport.Context()
	if !s.hub.heads.take(ctx, s.ended, &s.read, len(names)) {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		return nil, errEnded
	}
	defer s.hub.heads.give()
	heads, err := s.hub.database.Heads(ctx, names)
	if err != nil {
		return nil, headsError(err)
	}
	return heads, nil
}

// headsError is what a client reads when its targets could not be: it may try
// again.
func headsError(err error) error {
	if kind := fault.KindOf(err); kind == fault.Late && !errors.Is(err, context.DeadlineExceeded) {
		return fault.Wrap(fault.Unavailable, err, "the stream's database took too long to answer")
	}
	return err
}
