package delivery

import (
	"slices"
	"sort"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// notices are those that some registration may still need, of all topics. Their
// budget counts what they take in memory; the oldest make room.
type notices struct {
	ledger
	// In the order of arrival.
	oldest, newest *kept
	// shifted is how many slots were moved so far: what it costs beside the notices
	// themselves.
	shifted int
}

// kept is a notice that some registration may still need: 48 bytes.
type kept struct {
	envelope     *Envelope
	previous     topic.SequenceID
	entry        *entry
	older, newer *kept
}

// slot is the place of a notice among those of its topic.
type slot struct {
	id     topic.SequenceID
	notice *kept // nil once dropped
}

// noticeOverhead is what a kept notice takes beside its envelope, as measured: its
// records here, its slot in an array that grew by appending, and the head of the
// bus message that the envelope is a part of. An eighth more of everything is what
// the allocator rounds up.
const noticeOverhead = 256

// maxLate is how many places a notice may come after those that follow it. One that
// is later is left to the database, so that no order of arrival makes it expensive.
const maxLate = 64

func noticeBytes(envelope *Envelope) int {
	n := len(envelope.Encoded)
	return n + n/8 + noticeOverhead
}

// find returns where the id is, or would be, among the slots of the topic.
func (c *catching) find(id topic.SequenceID) int {
	return sort.Search(len(c.slots), func(i int) bool { return c.slots[i].id >= id })
}

// keep holds a notice for the registrations of its topic that catch up.
func (n *notices) keep(t *entry, envelope *Envelope, previous topic.SequenceID) {
	c := t.catching
	at := c.find(envelope.SequenceID)
	late := len(c.slots) - at
	if late > maxLate || late > 0 && c.slots[at].id == envelope.SequenceID {
		return
	}
	k := &kept{envelope: envelope, previous: previous, entry: t, older: n.newest}
	c.slots = slices.Insert(c.slots, at, slot{envelope.SequenceID, k})
	n.shifted += late
	if n.newest == nil {
		n.oldest = k
	} else {
		n.newest.newer = k
	}
	n.newest = k
	n.charge(noticeBytes(envelope))
	for n.free() < 0 {
		n.drop(n.oldest)
	}
}

// drop makes room. Who needs the notice reads it.
func (n *notices) drop(k *kept) {
	c := k.entry.catching
	n.forget(k)
	at := c.find(k.envelope.SequenceID)
	c.slots[at].notice = nil
	c.dropped++
	for len(c.slots) > 0 && c.slots[0].notice == nil {
		c.slots = c.slots[1:]
		c.dropped--
	}
	switch {
	case len(c.slots) == 0:
		c.slots = nil
	case c.dropped > len(c.slots)/2:
		n.shifted += len(c.slots)
		c.slots = slices.DeleteFunc(c.slots, func(s slot) bool { return s.notice == nil })
		c.dropped = 0
	}
}

// forgetAll is for a topic whose notices have served.
func (n *notices) forgetAll(c *catching) {
	for _, s := range c.slots {
		if s.notice != nil {
			n.forget(s.notice)
		}
	}
}

// forget takes a notice out of the order of arrival and gives back its bytes.
func (n *notices) forget(k *kept) {
	if k.older == nil {
		n.oldest = k.newer
	} else {
		k.older.newer = k.newer
	}
	if k.newer == nil {
		n.newest = k.older
	} else {
		k.newer.older = k.older
	}
	k.older, k.newer = nil, nil
	n.give(noticeBytes(k.envelope))
}

// link delivers the kept notices that follow the floor without a break, up to
// about a frame. It says whether it stopped for lack of room.
func (e *Engine) link(r *registration) (full bool) {
	c := r.entry.catching
	if c == nil || len(c.slots) == 0 {
		return false
	}
	turn := 0
	for _, s := range c.slots[c.find(r.floor+1):] {
		k := s.notice
		if k == nil || k.previous > r.floor || turn > e.config.FrameBytes {
			return false
		}
		if !e.admitLive(r, k.envelope) {
			return true
		}
		turn += len(k.envelope.Encoded)
	}
	return false
}
