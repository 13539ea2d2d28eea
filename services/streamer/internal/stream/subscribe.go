package stream

import (
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// Subscribe serves a bidirectional stream (API-090 to API-108).
func (h *Hub) Subscribe(transport grpc.ServerStream) error {
	s, err := h.open(transport, bidi, bidiFields)
	if err != nil {
		return err
	}
	defer s.close()
	s.control(&delivery.Frame{Kind: delivery.Started})
	select {
	case <-s.begun: // nothing is read from the client before
	case <-s.ended:
		return s.err
	case <-transport.Context().Done():
		return s.wait()
	}
	h.running.Add(1)
	go s.receive()
	return s.wait()
}

// receive takes the client's frames, in their order, until one ends the session.
// It comes back when the handler has returned at the latest.
//
// Each frame is handled aside, so that an update leaves no large stack behind.
func (s *session) receive() {
	defer s.hub.running.Done()
	r := s.newReceiver()
	for {
		s.alive.receiving(true)
		message, err := s.next()
		s.alive.receiving(false)
		more := false
		rpc.Aside(func() { more = r.take(message, err) })
		if !more {
			return
		}
	}
}

func (s *session) next() ([]byte, error) {
	var frame rpc.Frame
	if err := s.transport.RecvMsg(&frame); err != nil {
		return nil, err
	}
	return frame.Take(), nil
}

func (s *session) newReceiver() *receiver {
	return &receiver{
		session: s,
		updates: newBucket(s.hub.limits.MaxUpdateFramesPerSecond, s.hub.limits.MaxUpdateBurst),
		pings:   newBucket(s.hub.limits.MaxPingFramesPerSecond, s.hub.limits.MaxPingBurst),
	}
}

// receiver is what one bidirectional stream remembers of its client.
type receiver struct {
	session        *session
	updates, pings bucket
	last           uint64 // the last update id
}

// take handles what was received, and says whether the session goes on.
func (r *receiver) take(message []byte, err error) bool {
	switch {
	case errors.Is(err, io.EOF):
		r.session.end(nil) // half-close: the session is over, whatever is queued
		return false
	case err != nil:
		r.session.end(rpc.ReceiveError(err))
		return false
	}
	if err := r.admit(message); err != nil {
		r.session.end(err)
		return false
	}
	return true
}

// admit handles a message, within the budget if it names topics.
func (r *receiver) admit(message []byte) error {
	if topics := topicsOf(message, r.session.hub.limits); topics > 0 {
		release, err := r.session.hub.hold(topics, len(message))
		if err != nil {
			return err
		}
		defer release()
	}
	return r.handle(message)
}

func (r *receiver) handle(message []byte) error {
	limits := &r.session.hub.limits
	got, err := decodeRequest(message, *limits)
	switch got.which {
	case requestUpdate:
		if !r.updates.take(time.Now()) {
			return exhausted("Update", limits.MaxUpdateFramesPerSecond, limits.MaxUpdateBurst)
		}
		if err != nil {
			return err
		}
		return r.update(got.update)
	case requestPing:
		if !r.pings.take(time.Now()) {
			return exhausted("Ping", limits.MaxPingFramesPerSecond, limits.MaxPingBurst)
		}
		if err == nil {
			r.session.control(&delivery.Frame{Kind: delivery.Pong, Nonce: got.nonce})
		}
	case requestPong:
		if err == nil {
			r.session.alive.pong(got.nonce)
		}
	default:
		if err == nil {
			err = fault.Invalidf(fault.NoReason, "the request is empty, expected an Update, a Ping or a Pong")
		}
	}
	return err
}

func (r *receiver) update(u delivery.Update) error {
	if u.ID == 0 || u.ID <= r.last {
		return fault.Invalidf(fault.NoReason, "update id %d is not above the one before, %d: expected ids that rise from 1", u.ID, r.last)
	}
	if err := checkUnique(&u); err != nil {
		return err
	}
	r.last = u.ID
	u.Answer = delivery.Applied
	return r.session.apply(u)
}

// SubscribeStatic serves a stream of a fixed topic set (API-110 to API-113).
func (h *Hub) SubscribeStatic(transport grpc.ServerStream) error {
	var frame rpc.Frame
	if err := transport.RecvMsg(&frame); err != nil {
		return rpc.ReceiveError(err)
	}
	message := frame.Take()
	release, err := h.hold(min(fields(message, staticTopics), int(h.limits.MaxStaticTopics)), len(message))
	if err != nil {
		return err
	}
	released := sync.OnceFunc(release)
	defer released()
	u, err := decodeStatic(message, h.limits)
	if err != nil {
		return err
	}
	s, err := h.open(transport, static, staticFields)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.apply(u); err != nil {
		s.end(err)
	}
	released()
	return s.wait()
}
