// Package check compares what clients saw of a backend with what it holds in the
// end. Each invariant (I1 to I7 and I11 of docs/requirements.md) is a function over a
// recorded History; the end-to-end tests and the fault campaign use the same.
// It does no I/O.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Hash is SHA-256 over canonical bytes, as the backend takes it.
type Hash = envelope.MessageHash

// Envelope is what a client saw, or the table holds, of one envelope.
type Envelope struct {
	Meta envelope.Meta
	// Content is the hash of the payload bytes as they were seen.
	Content Hash
}

// Row is an envelope of the final table.
type Row struct {
	Envelope
	// CommittedAt is the server's commit timestamp, zero when it keeps none.
	CommittedAt time.Time
}

// Publish is an acknowledged request.
type Publish struct {
	// Begun is before the request was first sent, Ended after its response came.
	Begun, Ended time.Duration
	// Sent are the contents, and Metas the answers, in request order.
	Sent  []Hash
	Metas []envelope.Meta
}

// Page is the answer to a Query.
type Page struct {
	// Begun is before the request was sent.
	Begun     time.Duration
	Cursors   map[topic.Topic]topic.SequenceID
	Envelopes []Envelope
	HasMore   bool
}

// EventKind says what happened on a stream.
type EventKind uint8

// The kinds of events.
const (
	// Registered: Applied or Started named the topic with a target.
	Registered EventKind = iota
	// Removed: Applied confirmed that the topic is gone.
	Removed
	// Delivered: an envelope arrived.
	Delivered
)

// Event is one thing that a stream's client saw.
type Event struct {
	Kind  EventKind
	Topic topic.Topic
	// Cursor is where a registration began, Target what the server answered.
	Cursor, Target topic.SequenceID
	Envelope       Envelope
}

// Stream is the log of one stream from its opening to its end.
type Stream struct {
	Name   string
	Events []Event
	// Drained says that the client waited for everything before it closed the
	// stream: its registrations must then have reached the end of their topics.
	Drained bool
}

// Inbox is what an inbox was found to be after the last fault.
type Inbox struct {
	Topic topic.Topic
	// Broken says why its log cannot be read, replayed or looked up; empty: it can.
	Broken string
	// Lookups are the answers of GetInboxIds for its wallets.
	Lookups []Lookup
	// Extended says that its owner could add a further update.
	Extended bool
}

// Lookup is the inbox that an identifier was found to have, and the one that it
// has by a replay of the log; empty is none.
type Lookup struct{ Found, Replayed string }

// History is a whole run.
type History struct {
	// Offered has, for every content that might be stored, when it was first
	// sent. Refused are those that had to be, and were, refused for good.
	Offered   map[Hash]time.Duration
	Refused   map[Hash]bool
	Publishes []Publish
	Pages     []Page
	// Newest are answers of QueryNewest.
	Newest  []Envelope
	Streams []Stream
	Inboxes []Inbox
	// Table is what the primary holds at the end, Heads its topic_heads.
	Table []Row
	Heads map[topic.Topic]topic.SequenceID
	// Lost are sequence ids whose loss was announced: an asynchronous failover
	// took them. Their rows may be missing, but their ids may not come back.
	Lost map[topic.SequenceID]bool
}

// Missing are ids that some client saw, that the table does not have, and that may
// be missing.
func (h *History) Missing(may func(topic.SequenceID) bool) map[topic.SequenceID]bool {
	there := map[topic.SequenceID]bool{}
	for _, row := range h.Table {
		there[row.Meta.SequenceID] = true
	}
	missing := map[topic.SequenceID]bool{}
	see := func(id topic.SequenceID) {
		if id != 0 && !there[id] && may(id) {
			missing[id] = true
		}
	}
	for _, p := range h.Publishes {
		for _, meta := range p.Metas {
			see(meta.SequenceID)
		}
	}
	for _, p := range h.Pages {
		for _, e := range p.Envelopes {
			see(e.Meta.SequenceID)
		}
	}
	for _, e := range h.Newest {
		see(e.Meta.SequenceID)
	}
	for _, s := range h.Streams {
		for _, e := range s.Events {
			see(e.Envelope.Meta.SequenceID)
		}
	}
	return missing
}

// Violation is a promise that was broken.
type Violation struct {
	Invariant string
	What      string
}

func (v Violation) String() string { return v.Invariant + ": " + v.What }

// limitPerInvariant keeps a report readable when everything is wrong.
const limitPerInvariant = 20

// report collects violations of one invariant.
type report struct {
	invariant string
	found     []Violation
	dropped   int
}

func (r *report) add(format string, args ...any) {
	if len(r.found) == limitPerInvariant {
		r.dropped++
		return
	}
	r.found = append(r.found, Violation{r.invariant, fmt.Sprintf(format, args...)})
}

func (r *report) violations() []Violation {
	if r.dropped > 0 {
		r.found = append(r.found, Violation{r.invariant, fmt.Sprintf("and %d more", r.dropped)})
	}
	return r.found
}

// checks has the check of each invariant by its name, in order. I5 is checked
// under the faults of the run, which makes it I6.
var checks = []struct {
	name  string
	check func(*History, *index, *report)
}{
	{"I1", acknowledgedIsStored},
	{"I2", topicOrder},
	{"I3", identityOrder},
	{"I4", oneRowPerHash},
	{"I5/I6", streamsAreComplete},
	{"I7", bytesAreKept},
	{"I11", idsAreNeverReused},
	{"inboxes", inboxesLive},
}

// All runs every check. It returns nothing when all promises were kept.
func All(h *History) []Violation {
	x := newIndex(h)
	var all []Violation
	for _, c := range checks {
		r := &report{invariant: c.name}
		c.check(h, x, r)
		all = append(all, r.violations()...)
	}
	return all
}

// index is the final table in the orders that checks need.
type index struct {
	byID    map[topic.SequenceID]*Row
	byTopic map[topic.Topic][]*Row // by ascending sequence id
}

func newIndex(h *History) *index {
	x := &index{byID: make(map[topic.SequenceID]*Row, len(h.Table)), byTopic: map[topic.Topic][]*Row{}}
	for i := range h.Table {
		row := &h.Table[i]
		x.byID[row.Meta.SequenceID] = row
		x.byTopic[row.Meta.Topic] = append(x.byTopic[row.Meta.Topic], row)
	}
	for _, rows := range x.byTopic {
		slices.SortFunc(rows, func(a, b *Row) int { return cmp.Compare(a.Meta.SequenceID, b.Meta.SequenceID) })
	}
	return x
}

// above returns the rows of a topic above a position.
func (x *index) above(name topic.Topic, cursor topic.SequenceID) []*Row {
	rows := x.byTopic[name]
	from, _ := slices.BinarySearchFunc(rows, cursor+1, func(row *Row, id topic.SequenceID) int {
		return cmp.Compare(row.Meta.SequenceID, id)
	})
	return rows[from:]
}

// last is the highest sequence id of a topic, 0 without an envelope.
func (x *index) last(name topic.Topic) topic.SequenceID {
	rows := x.byTopic[name]
	if len(rows) == 0 {
		return 0
	}
	return rows[len(rows)-1].Meta.SequenceID
}
