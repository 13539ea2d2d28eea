package delivery

import "slices"

const (
	// ahead is how many frames a transport may have that it has not written: more
	// would wait there, out of reach, for a client that reads nothing.
	ahead = 2
	// smallFrame is how long a frame is whose end no transport tells, and smallAhead
	// how many bytes of them, not counted, may follow each other.
	smallFrame = 1 << 10
	smallAhead = 4 << 10
)

// Next says that the transport took the frame that Next returned before, and
// returns the next one. After nil, Effects.Wake tells when there is more.
func (e *Engine) Next(s *Session) *Frame {
	if taken := s.out.sending; taken != nil {
		s.out.sending = nil
		if taken.Owed && !taken.written {
			s.out.owed = append(s.out.owed, taken)
		} else {
			e.done(s, taken)
		}
	}
	if s.err == nil {
		s.out.sending = e.take(s)
	}
	if s.out.sending == nil {
		s.busy = false
	}
	e.dispatch()
	return s.out.sending
}

// take returns the next frame of the output, if the transport may have it.
func (e *Engine) take(s *Session) *Frame {
	if len(s.out.owed) >= ahead {
		s.held = true
		s.waits.Store(true)
		return nil
	}
	f := s.out.take(e.config.LiveFrames)
	if f == nil {
		return nil
	}
	if len(s.out.owed) == 0 && f.Bytes < smallFrame-frameBytes && s.out.small+f.Bytes <= smallAhead {
		s.out.small += f.Bytes
		return f
	}
	f.Owed = true
	s.out.small = 0
	if f.Kind == Messages { // buffers come in certain sizes
		e.chargeFrame(f, min(f.charged, slackBytes))
	}
	return f
}

// Written says that the transport has written, or given up, all bytes of a frame
// that is owed.
func (e *Engine) Written(f *Frame) {
	s := f.session
	f.written = true
	at := slices.Index(s.out.owed, f)
	if at < 0 {
		return // Next has not been told that it was taken, or it was dropped
	}
	s.out.owed = slices.Delete(s.out.owed, at, at+1)
	e.done(s, f)
	if s.held {
		s.held = false
		e.wake(s)
	}
	e.dispatch()
}

// Dropped says that the transport of a closed session is gone, with all it held.
func (e *Engine) Dropped(s *Session) {
	for _, f := range s.out.owed {
		e.release(f)
	}
	s.out.owed = nil
	e.dispatch()
}

// IsOwed says whether the transport holds frames of the session.
func (s *Session) IsOwed() bool { return len(s.out.owed) > 0 }

// done notes that a frame has left.
func (e *Engine) done(s *Session, f *Frame) {
	s.out.frames--
	s.out.bytes -= f.Bytes
	e.release(f)
	s.Progressed()
	e.freed(s)
}

// freed lets a session go on that waited for room.
func (e *Engine) freed(s *Session) {
	if s.err != nil {
		return
	}
	if s.wantsRoom && e.roomForAnswer(s, s.wanted) {
		s.wantsRoom = false
		e.effects.Room = append(e.effects.Room, s)
	}
	if s.full && e.roomForPage(s) {
		s.full = false
		e.makeReady(s)
	}
	if s.wantsRoom && !e.fitsAnswer(s.wanted) {
		e.starve(s)
	}
	if s.wantsRoom || s.full {
		s.waits.Store(true)
	}
}

// Waits says, once, that the session waits for its transport, or that all wait for
// somebody's: an owner that learns that a frame is written tells the engine at once
// then, else with the next event. It may be called from any goroutine at any time.
func (e *Engine) Waits(s *Session) bool {
	return s.waits.CompareAndSwap(true, false) || e.short.CompareAndSwap(true, false)
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
	return e.fitsAnswer(bytes) && s.out.frames < e.config.SessionFrames && (s.out.bytes == 0 ||
		s.out.bytes+bytes <= e.config.SessionBytes && e.isShare(s.out.bytes+bytes))
}

// fitsAnswer says whether the budget has room for an answer: it leaves that of a
// page, and a long one what is reserved, so that answers which nobody takes end no
// catching up.
func (e *Engine) fitsAnswer(bytes int) bool {
	leaves := e.reservation()
	if bytes > e.modest() {
		leaves = max(leaves, e.reserved())
	}
	return bytes <= e.output.free()-leaves
}

// isShare says whether a session may hold so many bytes, which leave enough of the
// budget for the others.
func (e *Engine) isShare(bytes int) bool {
	free := e.output.free()
	return bytes <= max((free-e.reserved())/budgetShare, min(e.modest(), free/budgetShare))
}

func (e *Engine) reserved() int { return int(e.output.budget.Total()) / reservedPart }

func (e *Engine) modest() int {
	return min(modestBytes, int(e.output.budget.Total())/modestOutput)
}

// isPressed says that only modest output is queued any more.
func (e *Engine) isPressed() bool { return e.output.free() < e.reserved() }

// starve notes a session whose answer has no room in the budget.
func (e *Engine) starve(s *Session) {
	if !s.starved {
		s.starved = true
		e.starved = append(e.starved, s)
	}
}

// starvedAtOnce is how many of those that wait for the budget one event looks at.
const starvedAtOnce = 4

// feedStarved lets updates begin that waited for the budget. They take turns at
// being looked at, so that one with a long answer is in nobody's way.
func (e *Engine) feedStarved() {
	for range min(len(e.starved), starvedAtOnce) {
		s := e.starved[0]
		e.starved[0] = nil
		e.starved = e.starved[1:]
		s.starved = false
		if s.wantsRoom {
			e.freed(s) // or it is starved again
		}
	}
	if len(e.starved) > 0 {
		e.short.Store(true)
	}
}
