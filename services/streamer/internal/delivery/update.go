package delivery

import (
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Update changes the topics of a session. No topic occurs twice in it.
type Update struct {
	// ID of the Applied that answers it.
	ID      uint64
	Adds    []Add
	Removes []topic.Topic
	// Answer is the kind of the frame that carries the targets: Applied, or
	// Started for a static stream.
	Answer Kind
}

// Add is a topic and its exclusive starting position.
type Add struct {
	Topic  topic.Topic
	Cursor topic.SequenceID
}

// Progress of an update.
type Progress uint8

// What Step says.
const (
	// More: call Step again.
	More Progress = iota
	// NeedHeads: read the heads of Pending, then call Heads.
	NeedHeads
	// Done: the answer is queued and every registration is live or catches up.
	Done
)

type phase uint8

const (
	counting phase = iota
	removing
	adding
	reading
	activating
)

// pending is an update on its way. Its work is done in steps, so that a large
// one delays no other session.
type pending struct {
	Update
	phase phase
	at    int
	total int // registrations once it is applied
	// reserved is what the answer may take of the budget.
	reserved int
	added    []*registration
	heads    []topic.SequenceID // of added
}

// Begin starts an update. One is on its way at a time. It is refused while the
// session's output is full; Effects.Room tells when to try again.
func (e *Engine) Begin(s *Session, u Update) bool {
	if s.err != nil {
		return true // Step says so
	}
	bytes := AnswerBytes(len(u.Adds))
	if !e.roomForAnswer(s, bytes) {
		s.wantsRoom, s.wanted = true, bytes
		s.isFull()
		if !e.fitsAnswer(bytes) {
			e.starve(s)
		}
		return false
	}
	e.output.charge(bytes)
	s.update = &pending{Update: u, total: len(s.registrations), reserved: bytes}
	return true
}

var errNoDatabase = fault.Errorf(fault.Unavailable, "the stream's database is not reachable at the moment: topics cannot be added")

// Step does a part of the update. An error is to end the session; nothing of
// the update has been applied then.
func (e *Engine) Step(s *Session) (Progress, *fault.Error) {
	u := s.update
	if s.err != nil || u == nil {
		return Done, s.err
	}
	switch u.phase {
	case counting:
		return More, e.count(s, u)
	case removing:
		e.remove(s, u)
	case adding:
		e.add(s, u)
		if u.phase == reading {
			if len(u.added) > 0 {
				return NeedHeads, nil
			}
			e.answer(s, nil)
		}
	case activating:
		if e.activate(u); u.at == len(u.added) {
			s.update = nil
			return Done, nil
		}
	case reading:
		return NeedHeads, nil
	}
	return More, nil
}

// part returns the bounds of the next step in n items.
func (e *Engine) part(u *pending, n int) (from, to int) {
	from = u.at
	to = min(n, from+e.config.StepTopics)
	u.at = to
	return from, to
}

func (u *pending) next(p phase) { u.phase, u.at = p, 0 }

// count checks the bound on topics. Topics are unique in an update, so that the
// order of removes and adds does not matter for it.
func (e *Engine) count(s *Session, u *pending) *fault.Error {
	all := len(u.Removes) + len(u.Adds)
	from, to := e.part(u, all)
	for i := from; i < to; i++ {
		if i < len(u.Removes) {
			if s.registrations[e.topics[u.Removes[i]]] != nil {
				u.total--
			}
		} else if s.registrations[e.topics[u.Adds[i-len(u.Removes)].Topic]] == nil {
			u.total++
		}
	}
	if to < all {
		return nil
	}
	u.next(removing)
	switch {
	case u.total > e.config.MaxTopics && u.total > len(s.registrations):
		return fault.Invalidf(fault.NoReason, "the stream would hold %d topics, expected at most %d", u.total, e.config.MaxTopics)
	case !e.connected && u.total+len(u.Removes) > len(s.registrations):
		if failure := e.checkConnected(s, u); failure != nil {
			return failure
		}
	}
	return e.pay(s, u.total)
}

// checkConnected refuses new topics while their heads cannot be read.
func (e *Engine) checkConnected(s *Session, u *pending) *fault.Error {
	for _, add := range u.Adds {
		if s.registrations[e.topics[add.Topic]] == nil {
			return errNoDatabase
		}
	}
	return nil
}

func (e *Engine) remove(s *Session, u *pending) {
	from, to := e.part(u, len(u.Removes))
	for _, name := range u.Removes[from:to] {
		if r := s.registrations[e.topics[name]]; r != nil {
			e.unregister(r)
		}
	}
	e.repay(s, max(u.total, len(s.registrations)))
	if to == len(u.Removes) {
		u.next(adding)
	}
}

func (e *Engine) add(s *Session, u *pending) {
	from, to := e.part(u, len(u.Adds))
	for _, add := range u.Adds[from:to] {
		t := e.entryOf(add.Topic)
		if s.registrations[t] == nil {
			u.added = append(u.added, e.register(s, t, add.Cursor))
		}
	}
	if to == len(u.Adds) {
		u.next(reading)
	}
}

// Pending returns the new topics of the update, in add order, or why the session has
// ended meanwhile.
func (s *Session) Pending() ([]topic.Topic, *fault.Error) {
	if s.err != nil {
		return nil, s.err
	}
	names := make([]topic.Topic, len(s.update.added))
	for i, r := range s.update.added {
		names[i] = r.entry.name
	}
	return names, nil
}

// Heads are the visible heads of Pending, read after NeedHeads. The answer is
// queued; call Step until Done.
func (e *Engine) Heads(s *Session, heads []topic.SequenceID) {
	u := s.update
	if s.err != nil || u == nil {
		return
	}
	u.heads = heads
	targets := make([]Target, len(heads))
	for i, r := range u.added {
		targets[i] = Target{Topic: r.entry.name, Through: heads[i]}
	}
	e.answer(s, targets)
}

// answer queues the frame that answers an update: behind everything that was
// queued before, and before anything of the new registrations.
func (e *Engine) answer(s *Session, targets []Target) {
	u := s.update
	f := &Frame{Kind: u.Answer, ID: u.ID, Targets: targets, Bytes: AnswerBytes(len(targets))}
	s.out.flush()
	s.out.live.push(f)
	s.out.barrier = s.out.live.queued
	e.output.give(u.reserved)
	u.reserved = 0
	e.queued(s, f)
	u.next(activating)
}

// AnswerBytes is what the answer to an update of so many new topics is counted as in
// Config.BudgetBytes.
func AnswerBytes(targets int) int { return controlBytes + targetBytes*targets }

// activate makes registrations current or lets them catch up, after their
// targets were queued.
func (e *Engine) activate(u *pending) {
	from, to := e.part(u, len(u.added))
	for i := from; i < to; i++ {
		r := u.added[i]
		e.raise(r.entry, u.heads[i])
		e.link(r)
		if r.floor >= r.entry.known {
			r.state = current
			e.isCurrent(r.entry)
		} else {
			e.enqueue(r)
		}
	}
	e.dispatch()
}
