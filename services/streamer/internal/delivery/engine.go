package delivery

import (
	"sync/atomic"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Engine is the delivery state of one process.
type Engine struct {
	config   Config
	topics   map[topic.Topic]*entry
	sessions map[*Session]struct{}
	effects  Effects

	registered int

	// What is held in memory for clients. Output is queued frames, those in the
	// transport, and pages on their way; registrations are also updates.
	notices       notices
	output        ledger
	registrations ledger

	ready    []*Session      // wait for their turn at the database
	starved  []*Session      // wait with an update for the budget
	waiting  []*registration // wait for the next tick
	inFlight int
	rowSize  int // of history, a moving average
	fetches  uint64
	// short is set when somebody waits for the budget.
	short atomic.Bool

	now       time.Time
	connected bool
	lostAt    time.Time
}

// Effects are what the owner of an Engine has to do.
type Effects struct {
	// Wake are sessions with output whose Next returned nil before, or was never
	// called.
	Wake []*Session
	// Fetch are pages to read: each ends in Page or FetchFailed.
	Fetch []*Fetch
	// Ended are sessions to end with their Err.
	Ended []*Session
	// Room are sessions whose Begin was refused and may be tried again.
	Room []*Session
}

// New returns an engine without a database connection: see Found.
func New(config Config, now time.Time) *Engine {
	return &Engine{
		config:   config,
		topics:   map[topic.Topic]*entry{},
		sessions: map[*Session]struct{}{},
		notices:  notices{ledger: newLedger(config.NoticeBytes)},
		output:   newLedger(config.BudgetBytes),

		registrations: newLedger(config.RegistrationBytes),
		now:           now,
		lostAt:        now,
	}
}

// TakeEffects returns what is to be done since the last call.
func (e *Engine) TakeEffects() Effects {
	e.notices.tell()
	e.output.tell()
	e.registrations.tell()
	taken := e.effects
	e.effects = Effects{}
	return taken
}

// Stats are for metrics.
type Stats struct {
	Registered, NoticeBytes, BudgetBytes int
}

// Stats returns the current figures.
func (e *Engine) Stats() Stats {
	return Stats{Registered: e.registered, NoticeBytes: e.notices.used, BudgetBytes: e.output.used}
}

// Notice delivers what was stored: envelope.SequenceID follows previous on the
// topic without anything between. Without Encoded bytes it only raises the known
// head.
func (e *Engine) Notice(name topic.Topic, previous topic.SequenceID, envelope *Envelope) {
	t := e.topics[name]
	if t == nil {
		return
	}
	id := envelope.SequenceID
	t.known = max(t.known, id)
	carries := len(envelope.Encoded) > 0
	late := false // some registration can take it soon, but not now
	for _, r := range t.registrations {
		if r.session.err != nil || r.floor >= id {
			continue
		}
		if r.state == current {
			if carries && previous <= r.floor && e.admitLive(r, envelope) {
				continue
			}
			e.fallBehind(r)
		}
		// For a session without room the database keeps it: a client that does not
		// read must not push out what others need.
		late = late || !r.session.full
	}
	if late && carries {
		e.notices.keep(t, envelope, previous)
		e.relink(t)
	}
	e.dispatch()
}

// relink tries the registrations of a topic that catch up against its notices.
func (e *Engine) relink(t *entry) {
	for i := 0; i < len(t.registrations) && t.catching != nil; i++ {
		r := t.registrations[i]
		if r.session.err != nil || r.state == current || r.state == registering {
			continue
		}
		if e.link(r); r.floor >= t.known {
			r.state = current
			e.isCurrent(t)
		}
	}
}

// Raise says that the topic has an envelope with this sequence id, or a later
// one. It says whether that was news to a registered topic.
func (e *Engine) Raise(name topic.Topic, id topic.SequenceID) bool {
	t := e.topics[name]
	if t == nil || id <= t.known {
		return false
	}
	e.raise(t, id)
	e.dispatch()
	return true
}

func (e *Engine) raise(t *entry, id topic.SequenceID) {
	if id <= t.known {
		return
	}
	t.known = id
	for _, r := range t.registrations {
		if r.state == current && r.floor < id && r.session.err == nil {
			e.fallBehind(r)
		}
	}
}

// Lost says that there is no database connection. Nothing is fetched until
// Found; notices that link are still delivered, for Config.LostDatabase.
func (e *Engine) Lost() {
	if e.connected {
		e.connected = false
		e.lostAt = e.now
	}
}

// Connected says whether Found was called after the last Lost. Without a
// connection no registration may be added.
func (e *Engine) Connected() bool { return e.connected }

// Found says that the database answers again, with the same lineage: what it
// shows may be older than what it showed before, but not different.
func (e *Engine) Found() {
	e.connected = true
	e.dispatch()
}

// Reset ends every session and forgets all heads: the database is of another
// lineage, and nothing of the old one may reach a later session.
func (e *Engine) Reset(reason *fault.Error) {
	e.EndAll(reason)
	e.topics = map[topic.Topic]*entry{}
	e.ready, e.waiting = nil, nil
	for s := range e.sessions {
		s.inReady = false
	}
}

// EndAll ends every session.
func (e *Engine) EndAll(reason *fault.Error) {
	for s := range e.sessions {
		e.end(s, reason)
	}
}

var (
	errSlow = fault.Errorf(fault.Exhausted, "the client did not take what was queued for it in time: reconnect from durable cursors")
	errLost = fault.Errorf(fault.Unavailable, "the stream's database has been unreachable for too long")
)

// Tick is the end of a sweep: topics that wait for the replica are read again.
// It also finds sessions whose time is up.
func (e *Engine) Tick(now time.Time) {
	e.now = now
	again := e.waiting
	e.waiting = nil
	for _, r := range again {
		if r.state == waiting && r.session.err == nil {
			e.enqueue(r)
		}
	}
	for s := range e.sessions {
		e.checkSlow(s)
	}
	if !e.connected && now.Sub(e.lostAt) >= e.config.LostDatabase {
		e.EndAll(errLost)
	}
	e.dispatch()
}

// checkSlow ends a session whose client takes nothing: when its output is full, and
// any output while the budget is short, which stands in the way of all others.
func (e *Engine) checkSlow(s *Session) {
	if s.err != nil || !s.full && (s.out.bytes == 0 || !e.isPressed() && len(e.starved) == 0) {
		s.stuckSince = time.Time{}
		return
	}
	progress := s.progress.Load()
	if s.stuckSince.IsZero() || progress != s.seen {
		s.stuckSince, s.seen = e.now, progress
		return
	}
	if e.now.Sub(s.stuckSince) >= e.config.SlowClient {
		e.end(s, errSlow)
	}
}

func (e *Engine) end(s *Session, reason *fault.Error) {
	if s.err == nil {
		s.err = reason
		e.effects.Ended = append(e.effects.Ended, s)
	}
}
