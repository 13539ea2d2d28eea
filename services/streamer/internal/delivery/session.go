package delivery

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// Session is the delivery state of one open stream.
type Session struct {
	// Owner is for the owner of the engine.
	Owner any

	registrations map[*entry]*registration
	paid          int             // registrations counted in the budget
	closing       []*registration // what Close has left to remove
	update        *pending
	out           output

	// The queue of registrations that are behind, in the order of their turns.
	first, last *registration
	removed     int // unregistered ones that are still linked

	outstanding int  // registrations in a fetch
	inReady     bool // is in Engine.ready
	busy        bool // somebody calls Next until it returns nil
	held        bool // Next returned nil because of what the transport has not written
	wantsRoom   bool
	starved     bool // is in Engine.starved
	wanted      int  // bytes of the answer that waits for room
	// full is set when something was refused for lack of room.
	full bool
	// waits is set with held, wantsRoom and full: what the transport writes matters
	// at once.
	waits      atomic.Bool
	stuckSince time.Time
	seen       uint64
	progress   atomic.Uint64
	err        *fault.Error
}

// Open adds a session without topics.
func (e *Engine) Open(owner any) *Session {
	s := &Session{Owner: owner, registrations: map[*entry]*registration{}}
	e.sessions[s] = struct{}{}
	return s
}

// Err is why the engine ended the session, or nil.
func (s *Session) Err() *fault.Error { return s.err }

// Progressed notes that the transport took some bytes. It may be called from any
// goroutine at any time.
func (s *Session) Progressed() { s.progress.Add(1) }

// Registered is the number of topics of the session.
func (s *Session) Registered() int { return len(s.registrations) }

// Close removes the session, Config.StepTopics registrations at a time. It says
// whether it has to be called again. Frames that the transport has not written
// count until Written or Dropped.
func (e *Engine) Close(s *Session) (more bool) {
	if s.err == nil {
		s.err = errClosed
	}
	if _, open := e.sessions[s]; open {
		delete(e.sessions, s)
		if s.update != nil {
			e.output.give(s.update.reserved)
			s.update = nil
		}
		s.first, s.last = nil, nil
		s.closing = slices.Collect(maps.Values(s.registrations))
		for _, f := range s.out.empty() {
			e.release(f)
		}
	}
	last := max(0, len(s.closing)-e.config.StepTopics)
	for _, r := range s.closing[last:] {
		e.unregister(r)
	}
	s.closing = s.closing[:last]
	e.repay(s, len(s.registrations))
	e.dispatch()
	return last > 0
}

var errClosed = fault.Errorf(fault.Cancelled, "the stream has ended")

// Control queues a frame of kind Started, Ping, Pong or Keepalive. It always has
// room; it counts towards a full output.
func (e *Engine) Control(s *Session, f *Frame) {
	if s.err != nil {
		return
	}
	f.Bytes = controlBytes
	s.out.control = append(s.out.control, f)
	e.queued(s, f)
}

func (e *Engine) queued(s *Session, f *Frame) {
	f.session = s
	s.out.frames++
	s.out.bytes += f.Bytes
	e.chargeFrame(f, f.Bytes)
	if s.out.frames >= e.config.SessionFrames {
		s.isFull()
	}
	e.wake(s)
}

func (s *Session) isFull() {
	s.full = true
	s.waits.Store(true)
}

func (e *Engine) wake(s *Session) {
	if !s.busy {
		s.busy = true
		e.effects.Wake = append(e.effects.Wake, s)
	}
}

// admitLive queues an envelope that is proven to follow the floor. False is for
// lack of room.
func (e *Engine) admitLive(r *registration, envelope *Envelope) bool {
	s := r.session
	size := envelope.FramedSize()
	waits := r.place.history && s.out.history.holds(r.place.number) // it must not overtake its own history
	to := &s.out.live
	if waits {
		to = &s.out.history
	}
	f := to.tail(size, e.config.FrameBytes)
	if !e.room(s, envelope, size, f == nil) {
		return false
	}
	if f == nil {
		f = e.newFrame(s, to)
	}
	f.Live++
	r.place = place{f.number, waits}
	e.put(r, f, envelope, size)
	return true
}

// admitHistory queues an envelope of a page. Rows of one page share frames; a
// registration gets one frame of a page at most: got is the one it has so far.
func (e *Engine) admitHistory(r *registration, envelope *Envelope, fetch uint64, got *Frame) (*Frame, bool) {
	s := r.session
	size := envelope.FramedSize()
	f := s.out.history.tail(size, e.config.FrameBytes)
	if f != nil && f.fetch != fetch {
		f = nil
	}
	if got != nil && f != got || !e.room(s, envelope, size, f == nil) {
		return got, false
	}
	if f == nil {
		f = e.newFrame(s, &s.out.history)
		f.fetch = fetch
		f.after = s.out.barrier
	}
	if live := r.place.number; !r.place.history && s.out.live.holds(live) && int32(live-f.after) > 0 {
		f.after = live // it must not overtake what is queued of it
	}
	r.place = place{f.number, true}
	e.put(r, f, envelope, size)
	return f, true
}

// room says whether an envelope fits the session's output and the budget.
func (e *Engine) room(s *Session, envelope *Envelope, size int, newFrame bool) bool {
	o := &s.out
	fits := o.bytes == 0 || o.bytes+size <= e.config.SessionBytes
	if newFrame {
		fits = fits && o.frames < e.config.SessionFrames
	}
	more := e.cost(envelope, size)
	if newFrame {
		more += frameBytes
	}
	if more > 0 {
		fits = fits && more <= e.output.free() && (o.bytes == 0 || e.isShare(o.bytes+size))
	}
	if !fits {
		s.isFull()
	}
	return fits && s.err == nil
}

// cost is what an envelope adds to the budget: a short one will be copied into the
// frame, a long one counts once for all outputs that hold it.
func (e *Engine) cost(envelope *Envelope, size int) int {
	switch {
	case !e.isShared(envelope):
		return size
	case envelope.holders == 0:
		return len(envelope.Encoded)
	}
	return 0
}

func (e *Engine) isShared(envelope *Envelope) bool {
	return len(envelope.Encoded) >= e.config.SharedBytes
}

func (e *Engine) newFrame(s *Session, to *lane) *Frame {
	f := &Frame{Kind: Messages, session: s}
	to.push(f)
	s.out.frames++
	e.chargeFrame(f, frameBytes)
	return f
}

func (e *Engine) put(r *registration, f *Frame, envelope *Envelope, size int) {
	s := r.session
	f.Envelopes = append(f.Envelopes, envelope)
	f.Bytes += size
	s.out.bytes += size
	if e.isShared(envelope) {
		if envelope.holders == 0 {
			e.output.charge(len(envelope.Encoded))
		}
		envelope.holders++
		f.shared = append(f.shared, envelope)
	} else {
		e.chargeFrame(f, size)
	}
	r.floor = envelope.SequenceID
	e.wake(s)
}

func (e *Engine) chargeFrame(f *Frame, bytes int) {
	f.charged += bytes
	e.output.charge(bytes)
}

// release gives back the budget of a frame.
func (e *Engine) release(f *Frame) {
	e.output.give(f.charged)
	f.charged = 0
	for _, envelope := range f.shared {
		if envelope.holders--; envelope.holders == 0 {
			e.output.give(len(envelope.Encoded))
		}
	}
	f.shared = nil
}
