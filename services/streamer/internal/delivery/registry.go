package delivery

import (
	"sort"

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

// registration is one topic on one session. There may be millions: 48 bytes.
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
	behind int     // registrations that are not current
	kept   []*kept // notices, by ascending sequence id
	// requests of the topic that are on their way, no more than all fetches hold.
	requests []*Request
}

// kept is a notice that some registration may still need.
type kept struct {
	envelope *Envelope
	previous topic.SequenceID
	entry    *entry // nil once dropped
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
	for _, k := range t.catching.kept {
		e.forget(k)
	}
	t.catching = nil
}

// fallBehind makes a current registration catch up.
func (e *Engine) fallBehind(r *registration) {
	r.entry.notCurrent()
	e.enqueue(r)
}

// keep holds a notice for the registrations of its topic that catch up.
func (e *Engine) keep(t *entry, envelope *Envelope, previous topic.SequenceID) {
	c := t.catching
	at := sort.Search(len(c.kept), func(i int) bool { return c.kept[i].envelope.SequenceID >= envelope.SequenceID })
	if at < len(c.kept) && c.kept[at].envelope.SequenceID == envelope.SequenceID {
		return
	}
	k := &kept{envelope: envelope, previous: previous, entry: t}
	c.kept = append(c.kept, nil)
	copy(c.kept[at+1:], c.kept[at:])
	c.kept[at] = k
	e.notices = append(e.notices, k)
	e.noticeBytes += len(envelope.Encoded)
	for e.noticeBytes > e.config.NoticeBytes {
		e.dropOldest()
	}
	e.compactNotices()
}

// dropOldest makes room by the notice that came first. Who needs it reads it.
func (e *Engine) dropOldest() {
	k := e.notices[0]
	e.notices[0] = nil
	e.notices = e.notices[1:]
	if k.entry != nil {
		c := k.entry.catching
		at := sort.Search(len(c.kept), func(i int) bool { return c.kept[i].envelope.SequenceID >= k.envelope.SequenceID })
		c.kept = append(c.kept[:at], c.kept[at+1:]...)
		e.forget(k)
	}
	e.forgotten-- // those that are still in the order of arrival are counted
}

func (e *Engine) forget(k *kept) {
	k.entry = nil
	e.noticeBytes -= len(k.envelope.Encoded)
	e.forgotten++
}

// compactNotices keeps the arrival order from growing with what was forgotten.
func (e *Engine) compactNotices() {
	if e.forgotten < 1024 || e.forgotten < len(e.notices)/2 {
		return
	}
	held := make([]*kept, 0, len(e.notices)-e.forgotten)
	for _, k := range e.notices {
		if k.entry != nil {
			held = append(held, k)
		}
	}
	e.notices = held
	e.forgotten = 0
}

// link delivers the kept notices that follow the floor without a break, up to
// about a frame. It says whether it stopped for lack of room.
func (e *Engine) link(r *registration) (full bool) {
	c := r.entry.catching
	if c == nil || len(c.kept) == 0 {
		return false
	}
	at := sort.Search(len(c.kept), func(i int) bool { return c.kept[i].envelope.SequenceID > r.floor })
	turn := 0
	for _, k := range c.kept[at:] {
		if k.previous > r.floor || turn > e.config.FrameBytes {
			return false
		}
		if !e.admitLive(r, k.envelope) {
			return true
		}
		turn += len(k.envelope.Encoded)
	}
	return false
}
