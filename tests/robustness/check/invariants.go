package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// acknowledgedIsStored is I1: whatever a client was told is stored is in the
// table, with the metadata that the client was told.
func acknowledgedIsStored(h *History, x *index, r *report) {
	for _, publish := range h.Publishes {
		if len(publish.Metas) != len(publish.Sent) {
			r.add("%d envelopes were answered by %d entries", len(publish.Sent), len(publish.Metas))
			continue
		}
		for i, meta := range publish.Metas {
			row := x.byID[meta.SequenceID]
			switch {
			case row == nil && h.Lost[meta.SequenceID]:
			case row == nil:
				r.add("sequence id %d was acknowledged and is not in the table", meta.SequenceID)
			case row.Meta != meta:
				r.add("sequence id %d was acknowledged as %+v, the table has %+v", meta.SequenceID, meta, row.Meta)
			case row.Meta.MessageHash != publish.Sent[i]:
				r.add("sequence id %d is not what was sent", meta.SequenceID)
			}
		}
	}
	for _, row := range h.Table {
		if h.Refused[row.Meta.MessageHash] {
			r.add("sequence id %d was refused to its client and is stored", row.Meta.SequenceID)
		}
		if _, sent := h.Offered[row.Meta.MessageHash]; !sent {
			r.add("sequence id %d was never sent by a client", row.Meta.SequenceID)
		}
	}
	for name, head := range h.Heads {
		if last := x.last(name); head != last {
			r.add("topic %x: its head is %d, its newest envelope %d", string(name), head, last)
		}
	}
}

// span is when an envelope was stored: not before begun, not after ended.
type span struct {
	id           topic.SequenceID
	begun, ended time.Duration
}

// topicOrder is I2: on a topic, sequence order is commit order, and every page is
// a run of rows without a gap that holds all that was acknowledged before it.
func topicOrder(h *History, x *index, r *report) {
	for name, rows := range x.byTopic {
		inCommitOrder(rows, r, "topic %x", string(name))
	}
	byTopic := map[topic.Topic][]span{}
	for id, s := range spans(h) {
		if row := x.byID[id]; row != nil {
			byTopic[row.Meta.Topic] = append(byTopic[row.Meta.Topic], s)
		}
	}
	for name, all := range byTopic {
		inRealTimeOrder(all, r, "topic %x", string(name))
	}
	acknowledged := acknowledgedAt(h, x)
	for i := range h.Pages {
		page(&h.Pages[i], h, x, acknowledged, r)
	}
	for _, seen := range h.Newest {
		if row := x.byID[seen.Meta.SequenceID]; (row == nil || row.Envelope != seen) && !h.Lost[seen.Meta.SequenceID] {
			r.add("the newest read returned sequence id %d, which the table does not have like that", seen.Meta.SequenceID)
		}
	}
}

// identityOrder is I3: the same across all identity topics together.
func identityOrder(h *History, x *index, r *report) {
	var rows []*Row
	for name, own := range x.byTopic {
		if name.Kind() == topic.IdentityUpdate {
			rows = append(rows, own...)
		}
	}
	slices.SortFunc(rows, func(a, b *Row) int { return cmp.Compare(a.Meta.SequenceID, b.Meta.SequenceID) })
	inCommitOrder(rows, r, "identity updates")
	var all []span
	for id, s := range spans(h) {
		if row := x.byID[id]; row != nil && row.Meta.Topic.Kind() == topic.IdentityUpdate {
			all = append(all, s)
		}
	}
	inRealTimeOrder(all, r, "identity updates")
}

// inCommitOrder checks rows in sequence order by the server's commit times, which
// are taken before locks are released.
func inCommitOrder(rows []*Row, r *report, where string, args ...any) {
	for i := 1; i < len(rows); i++ {
		before, after := rows[i-1], rows[i]
		if before.CommittedAt.IsZero() || after.CommittedAt.IsZero() {
			continue
		}
		if after.CommittedAt.Before(before.CommittedAt) {
			r.add(where+": sequence id %d was committed at %s, after %d at %s", append(args, before.Meta.SequenceID,
				before.CommittedAt.Format(time.RFC3339Nano), after.Meta.SequenceID, after.CommittedAt.Format(time.RFC3339Nano))...)
		}
	}
}

// spans has the tightest bounds on when each acknowledged envelope was stored. It
// cannot have been before the content was first sent, by a request that may have
// failed, nor after its first acknowledgement.
func spans(h *History) map[topic.SequenceID]span {
	all := map[topic.SequenceID]span{}
	for _, publish := range h.Publishes {
		for _, meta := range publish.Metas {
			s, seen := all[meta.SequenceID]
			if !seen {
				s = span{meta.SequenceID, publish.Begun, publish.Ended}
			}
			s.ended = min(s.ended, publish.Ended)
			if first, sent := h.Offered[meta.MessageHash]; sent {
				s.begun = min(s.begun, first)
			}
			all[meta.SequenceID] = s
		}
	}
	return all
}

// inRealTimeOrder checks that nothing that began after an acknowledgement got a
// smaller sequence id.
func inRealTimeOrder(all []span, r *report, where string, args ...any) {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.id, b.id) })
	// Going down from the highest id: the earliest end of a higher one must not be
	// before the begin of this one.
	for i, earliest := len(all)-1, (span{ended: 1 << 62}); i >= 0; i-- {
		if earliest.ended < all[i].begun {
			r.add(where+": sequence id %d was sent after %d had been acknowledged", append(args, all[i].id, earliest.id)...)
		}
		if all[i].ended < earliest.ended {
			earliest = all[i]
		}
	}
}

// acknowledgedAt has for each row the moment from which on it must be seen.
func acknowledgedAt(h *History, x *index) map[topic.SequenceID]time.Duration {
	at := map[topic.SequenceID]time.Duration{}
	for id, s := range spans(h) {
		if x.byID[id] != nil {
			at[id] = s.ended
		}
	}
	return at
}

// lookAhead is how many of the rows that a page left out are looked at: what had
// been acknowledged before a page is among the first of them, by I2.
const lookAhead = 256

// page checks one query: a run of each topic's rows from its cursor on.
func page(p *Page, h *History, x *index, acknowledged map[topic.SequenceID]time.Duration, r *report) {
	next := map[topic.Topic][]*Row{}
	for name, cursor := range p.Cursors {
		next[name] = x.above(name, cursor)
	}
	for _, seen := range p.Envelopes {
		name := seen.Meta.Topic
		rows, asked := next[name]
		if !asked {
			r.add("a query returned topic %x, which it was not asked for", string(name))
			return
		}
		if h.Lost[seen.Meta.SequenceID] {
			continue
		}
		if len(rows) == 0 || rows[0].Envelope != seen {
			expected := "nothing"
			if len(rows) > 0 {
				expected = rows[0].describe()
			}
			r.add("a query of topic %x above %d returned %s where the table has %s", string(name), p.Cursors[name], seen.describe(), expected)
			return
		}
		next[name] = rows[1:]
	}
	if p.HasMore {
		return
	}
	for name, rows := range next {
		for _, row := range rows[:min(len(rows), lookAhead)] {
			if ended, known := acknowledged[row.Meta.SequenceID]; known && ended < p.Begun {
				r.add("a query of topic %x above %d had no more, without sequence id %d, which had been acknowledged before",
					string(name), p.Cursors[name], row.Meta.SequenceID)
				return
			}
		}
	}
}

// oneRowPerHash is I4: a content is stored once on its topic and every copy of it
// was answered alike.
func oneRowPerHash(h *History, _ *index, r *report) {
	type key struct {
		topic topic.Topic
		hash  Hash
	}
	rows := map[key]topic.SequenceID{}
	for _, row := range h.Table {
		k := key{row.Meta.Topic, row.Meta.MessageHash}
		if other, twice := rows[k]; twice {
			r.add("sequence ids %d and %d are the same envelope", other, row.Meta.SequenceID)
		}
		rows[k] = row.Meta.SequenceID
	}
	answers := map[key]envelope.Meta{}
	for _, publish := range h.Publishes {
		for _, meta := range publish.Metas {
			k := key{meta.Topic, meta.MessageHash}
			other, known := answers[k]
			if known && other != meta && !h.Lost[other.SequenceID] {
				r.add("copies of one envelope were answered as sequence ids %d and %d", other.SequenceID, meta.SequenceID)
			}
			answers[k] = meta
		}
	}
}

// bytesAreKept is I7: what comes back is what went in, byte for byte.
func bytesAreKept(h *History, _ *index, r *report) {
	whole := func(where string, e Envelope) {
		if e.Content != e.Meta.MessageHash {
			r.add("%s: sequence id %d has other bytes than its hash says", where, e.Meta.SequenceID)
		}
	}
	for _, publish := range h.Publishes {
		for i := range min(len(publish.Metas), len(publish.Sent)) {
			whole("publish", Envelope{publish.Metas[i], publish.Sent[i]})
		}
	}
	for _, row := range h.Table {
		whole("table", row.Envelope)
	}
	for _, p := range h.Pages {
		for _, e := range p.Envelopes {
			whole("query", e)
		}
	}
	for _, e := range h.Newest {
		whole("newest", e)
	}
	for _, s := range h.Streams {
		for _, e := range s.Events {
			if e.Kind == Delivered {
				whole(s.Name, e.Envelope)
			}
		}
	}
}

// idsAreNeverReused is I11: over everything that any client ever saw, a sequence
// id means one envelope.
func idsAreNeverReused(h *History, _ *index, r *report) {
	type name struct {
		topic topic.Topic
		hash  Hash
	}
	meaning := map[topic.SequenceID]name{}
	see := func(meta envelope.Meta) {
		n := name{meta.Topic, meta.MessageHash}
		if other, known := meaning[meta.SequenceID]; known && other != n {
			r.add("sequence id %d means two envelopes", meta.SequenceID)
			return
		}
		meaning[meta.SequenceID] = n
	}
	for _, row := range h.Table {
		see(row.Meta)
	}
	for _, publish := range h.Publishes {
		for _, meta := range publish.Metas {
			see(meta)
		}
	}
	for _, p := range h.Pages {
		for _, e := range p.Envelopes {
			see(e.Meta)
		}
	}
	for _, e := range h.Newest {
		see(e.Meta)
	}
	for _, s := range h.Streams {
		for _, e := range s.Events {
			if e.Kind == Delivered {
				see(e.Envelope.Meta)
			}
		}
	}
}

// inboxesLive: whatever happened, each inbox is what its log says, and its owner
// can go on with it.
func inboxesLive(h *History, _ *index, r *report) {
	for _, inbox := range h.Inboxes {
		switch {
		case inbox.Broken != "":
			r.add("inbox %x: %s", string(inbox.Topic), inbox.Broken)
		case !inbox.Extended:
			r.add("inbox %x takes no further update of its owner", string(inbox.Topic))
		}
		for _, lookup := range inbox.Lookups {
			if lookup.Found != lookup.Replayed {
				r.add("inbox %x: a lookup finds %q, the replay of the log says %q", string(inbox.Topic), lookup.Found, lookup.Replayed)
			}
		}
	}
}
