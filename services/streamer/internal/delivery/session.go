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
	closing       []*registration // what Close has left to remove
	update        *pending
	out           output

	// The queue of registrations that are behind, in the order of their turns.
	first, last *registration
	removed     int // unregistered ones that are still linked

	outstanding int  // registrations in a fetch
	inReady     bool // is in Engine.ready
	busy        bool // somebody calls Next until it returns nil
	wantsRoom   bool
	wanted      int // bytes of the answer that waits for room
	// full is set when something was refused for lack of room.
	full       bool
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
// whether it has to be called again.
func (e *Engine) Close(s *Session) (more bool) {
	if s.err == nil {
		s.err = errClosed
	}
	if _, open := e.sessions[s]; open {
		delete(e.sessions, s)
		s.update = nil
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
	s.out.frames++
	s.out.bytes += f.Bytes
	e.used += f.Bytes
	if s.out.frames >= e.config.SessionFrames {
		s.full = true
	}
	e.wake(s)
}

func (e *Engine) wake(s *Session) {
	if !s.busy {
		s.busy = true
		e.effects.Wake = append(e.effects.Wake, s)
	}
}

// Next says that the transport took the frame that Next returned before, and
// returns the next one. After nil, Effects.Wake tells when there is more.
func (e *Engine) Next(s *Session) *Frame {
	if sent := s.out.sending; sent != nil {
		s.out.sending = nil
		s.out.frames--
		s.out.bytes -= sent.Bytes
		e.release(sent)
		s.Progressed()
		e.freed(s)
	}
	if s.err == nil {
		s.out.sending = s.out.take(e.config.LiveFrames)
	}
	if s.out.sending == nil {
		s.busy = false
	}
	e.dispatch()
	return s.out.sending
}

// freed lets a session go on that waited for room.
func (e *Engine) freed(s *Session) {
	if s.wantsRoom && e.roomForAnswer(s, s.wanted) {
		s.wantsRoom = false
		e.effects.Room = append(e.effects.Room, s)
	}
	if s.full && e.roomForPage(s) {
		s.full = false
		e.makeReady(s)
	}
}

// roomForPage says whether a page may be fetched for the session: at least one
// envelope of it has to fit, else it would be read in vain again and again.
func (e *Engine) roomForPage(s *Session) bool {
	page := e.config.PageBytes + e.config.EnvelopeBytes
	return s.out.frames < e.config.SessionFrames && (s.out.bytes == 0 ||
		s.out.bytes+page <= e.config.SessionBytes && e.isShare(s.out.bytes+e.config.EnvelopeBytes))
}

// roomForAnswer says whether an update with an answer of so many bytes may begin.
func (e *Engine) roomForAnswer(s *Session, bytes int) bool {
	return s.out.frames < e.config.SessionFrames && (s.out.bytes == 0 ||
		s.out.bytes+bytes <= e.config.SessionBytes && e.isShare(s.out.bytes+bytes))
}

// isShare says whether a session may hold so many bytes, which leave enough of the
// budget for the others.
func (e *Engine) isShare(bytes int) bool {
	return bytes <= (e.config.BudgetBytes-e.used)/budgetShare
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
	if envelope.holders == 0 {
		fits = fits && e.used+len(envelope.Encoded) <= e.config.BudgetBytes && (o.bytes == 0 || e.isShare(o.bytes+size))
	}
	if !fits {
		s.full = true
	}
	return fits && s.err == nil
}

func (e *Engine) newFrame(s *Session, to *lane) *Frame {
	f := &Frame{Kind: Messages}
	to.push(f)
	s.out.frames++
	return f
}

func (e *Engine) put(r *registration, f *Frame, envelope *Envelope, size int) {
	s := r.session
	f.Envelopes = append(f.Envelopes, envelope)
	f.Bytes += size
	s.out.bytes += size
	if envelope.holders == 0 {
		e.used += len(envelope.Encoded)
	}
	envelope.holders++
	r.floor = envelope.SequenceID
	e.wake(s)
}

// release gives back the budget of a frame.
func (e *Engine) release(f *Frame) {
	if f.Kind != Messages {
		e.used -= f.Bytes
		return
	}
	for _, envelope := range f.Envelopes {
		if envelope.holders--; envelope.holders == 0 {
			e.used -= len(envelope.Encoded)
		}
	}
}
