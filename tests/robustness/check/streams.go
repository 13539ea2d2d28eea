package check

import (
	"fmt"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// describe names an envelope in a report.
func (e Envelope) describe() string {
	return fmt.Sprintf("sequence id %d (hash %x, content %x)", e.Meta.SequenceID, e.Meta.MessageHash[:4], e.Content[:4])
}

// streamsAreComplete is I5, and I6 when the run had faults: each registration got
// the rows above its cursor, each once and in order, up to its end.
func streamsAreComplete(h *History, x *index, r *report) {
	for i := range h.Streams {
		stream(&h.Streams[i], h, x, r)
	}
}

// registration is what a topic of a stream still has to get.
type registration struct {
	rest   []*Row
	target topic.SequenceID
}

func stream(s *Stream, h *History, x *index, r *report) {
	open := map[topic.Topic]*registration{}
	for _, event := range s.Events {
		switch event.Kind {
		case Registered:
			if open[event.Topic] != nil {
				r.add("%s: topic %x was registered twice", s.Name, string(event.Topic))
			}
			if event.Target != 0 && !h.Lost[event.Target] {
				if row := x.byID[event.Target]; row == nil || row.Meta.Topic != event.Topic {
					r.add("%s: topic %x has the target %d, which is no envelope of it", s.Name, string(event.Topic), event.Target)
				}
			}
			open[event.Topic] = &registration{x.above(event.Topic, event.Cursor), event.Target}
		case Removed:
			delete(open, event.Topic)
		case Delivered:
			delivered(s, event.Envelope, open[event.Envelope.Meta.Topic], h, r)
		}
	}
	if !s.Drained {
		return
	}
	for name, reg := range open {
		if len(reg.rest) > 0 {
			r.add("%s: topic %x was left without sequence id %d and %d more", s.Name, string(name), reg.rest[0].Meta.SequenceID, len(reg.rest)-1)
		}
	}
}

// delivered takes one envelope off what its registration has to get.
func delivered(s *Stream, got Envelope, reg *registration, h *History, r *report) {
	name := got.Meta.Topic
	switch {
	case reg == nil:
		r.add("%s: got %s of topic %x, which is not registered", s.Name, got.describe(), string(name))
	case h.Lost[got.Meta.SequenceID]:
	case len(reg.rest) > 0 && reg.rest[0].Envelope == got:
		reg.rest = reg.rest[1:]
	default:
		at := -1
		for i, row := range reg.rest {
			if row.Meta.SequenceID == got.Meta.SequenceID {
				at = i
				break
			}
		}
		switch {
		case at > 0:
			r.add("%s: topic %x skipped from before sequence id %d to %d, %d envelopes", s.Name, string(name), reg.rest[0].Meta.SequenceID, got.Meta.SequenceID, at)
			reg.rest = reg.rest[at+1:]
		case at == 0:
			r.add("%s: got %s where the table has %s", s.Name, got.describe(), reg.rest[0].describe())
			reg.rest = reg.rest[1:]
		default:
			r.add("%s: topic %x got %s again, out of order or without a row", s.Name, string(name), got.describe())
		}
	}
}
