package delivery

import (
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// state of a registration; see the package documentation.
type state uint8

const (
	registering state = iota
	current
	behind
	fetching
	waiting
	removed
)

// registration is one topic on one session. There may be millions: 48 bytes, which
// with all maps and names are RegistrationBytes.
type registration struct {
	entry   *entry
	session *Session
	next    *registration // in the session's queue
	floor   topic.SequenceID
	place   place
	index   int32 // in entry.registrations
	state   state
	queued  bool // is in the session's queue, in whatever state
}

// entry is a topic with registrations: 64 bytes.
type entry struct {
	name          topic.Topic
	known         topic.SequenceID
	registrations []*registration
	// catching is there while some registration is not current.
	catching *catching
}

// catching is what a topic needs while registrations catch up.
type catching struct {
	behind int // registrations that are not current
	// slots are the places of its kept notices, by ascending sequence id; dropped
	// counts those of dropped ones among them, at most half. The first has a notice.
	slots   []slot
	dropped int
	// requests of the topic that are on their way, no more than all fetches hold.
	requests []*Request
}

// notCurrent counts a registration that is not, or is no longer, current.
func (t *entry) notCurrent() {
	if t.catching == nil {
		t.catching = &catching{}
	}
	t.catching.behind++
}

// register adds a topic to a session. The registration is not current until it
// is settled.
func (e *Engine) register(s *Session, t *entry, cursor topic.SequenceID) *registration {
	r := &registration{entry: t, session: s, floor: cursor, index: int32(len(t.registrations))}
	t.registrations = append(t.registrations, r)
	t.notCurrent()
	s.registrations[t] = r
	e.registered++
	return r
}

// entryOf returns the entry of a topic, a new one if it has none.
func (e *Engine) entryOf(name topic.Topic) *entry {
	t := e.topics[name]
	if t == nil {
		t = &entry{name: name}
		e.topics[name] = t
	}
	return t
}

// unregister removes a registration. It may stay linked in its session's queue,
// where it is skipped.
func (e *Engine) unregister(r *registration) {
	t := r.entry
	if r.state != current {
		e.isCurrent(t)
	}
	r.state = removed
	last := len(t.registrations) - 1
	moved := t.registrations[last]
	t.registrations[r.index] = moved
	moved.index = r.index
	t.registrations[last] = nil
	t.registrations = t.registrations[:last]
	if last == 0 && e.topics[t.name] == t {
		delete(e.topics, t.name)
	}
	delete(r.session.registrations, t)
	e.registered--
	r.session.unlinked(r)
}

// isCurrent notes that one registration fewer is behind. When none is, the
// notices have served.
func (e *Engine) isCurrent(t *entry) {
	t.catching.behind--
	if t.catching.behind > 0 {
		return
	}
	e.notices.forgetAll(t.catching)
	t.catching = nil
}

// fallBehind makes a current registration catch up.
func (e *Engine) fallBehind(r *registration) {
	r.entry.notCurrent()
	e.enqueue(r)
}
