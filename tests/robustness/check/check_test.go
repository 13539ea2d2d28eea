package check_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
)

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func name(kind topic.Kind, n byte) topic.Topic {
	length := topic.KeyLength
	if kind == topic.GroupMessage {
		length = topic.GroupIDLength
	}
	id := make([]byte, length)
	id[0] = n
	made, err := topic.New(kind, id)
	if err != nil {
		panic(err)
	}
	return made
}

var (
	groupA = name(topic.GroupMessage, 1)
	groupB = name(topic.GroupMessage, 2)
	inboxA = name(topic.IdentityUpdate, 1)
	inboxB = name(topic.IdentityUpdate, 2)
)

func row(id topic.SequenceID, on topic.Topic) check.Row {
	var hash check.Hash
	binary.BigEndian.PutUint64(hash[:], uint64(id))
	return check.Row{
		Envelope:    check.Envelope{Meta: envelope.Meta{Topic: on, SequenceID: id, ServerNS: int64(id), MessageHash: hash}, Content: hash},
		CommittedAt: epoch.Add(time.Duration(id) * time.Millisecond),
	}
}

// correct is a history in which every promise was kept: envelope n was sent at
// 10n ms and acknowledged 5 ms later.
func correct() *check.History {
	h := &check.History{
		Offered: map[check.Hash]time.Duration{}, Refused: map[check.Hash]bool{}, Heads: map[topic.Topic]topic.SequenceID{},
		Lost: map[topic.SequenceID]bool{},
	}
	for i, on := range []topic.Topic{groupA, groupA, groupB, groupA, inboxA, inboxB, inboxA} {
		r := row(topic.SequenceID(i+1), on)
		h.Table = append(h.Table, r)
		h.Heads[on] = r.Meta.SequenceID
		begun := time.Duration(i+1) * 10 * time.Millisecond
		h.Offered[r.Content] = begun
		h.Publishes = append(h.Publishes, check.Publish{Begun: begun, Ended: begun + 5*time.Millisecond,
			Sent: []check.Hash{r.Content}, Metas: []envelope.Meta{r.Meta}})
	}
	// The second is sent once more, at the end.
	h.Publishes = append(h.Publishes, check.Publish{Begun: time.Second, Ended: time.Second + 1,
		Sent: []check.Hash{h.Table[1].Content}, Metas: []envelope.Meta{h.Table[1].Meta}})
	h.Pages = []check.Page{
		{Begun: 16 * time.Millisecond, Cursors: map[topic.Topic]topic.SequenceID{groupA: 0, groupB: 0}, Envelopes: of(h, 1)},
		{Begun: time.Second, Cursors: map[topic.Topic]topic.SequenceID{groupA: 1}, Envelopes: of(h, 2), HasMore: true},
		{Begun: time.Second, Cursors: map[topic.Topic]topic.SequenceID{groupA: 2, groupB: 0}, Envelopes: of(h, 4, 3)},
	}
	h.Newest = of(h, 4)
	h.Inboxes = []check.Inbox{{Topic: inboxA, Lookups: []check.Lookup{{Found: "a", Replayed: "a"}, {}}, Extended: true}}
	h.Streams = []check.Stream{
		{Name: "stream 1", Drained: true, Events: append([]check.Event{{Kind: check.Registered, Topic: groupA, Cursor: 1, Target: 2}},
			deliveries(h, 2, 4)...)},
		{Name: "stream 2", Events: append(append([]check.Event{
			{Kind: check.Registered, Topic: groupA}, {Kind: check.Registered, Topic: groupB}}, deliveries(h, 1, 3)...),
			check.Event{Kind: check.Removed, Topic: groupB})},
	}
	return h
}

func of(h *check.History, ids ...int) []check.Envelope {
	var all []check.Envelope
	for _, id := range ids {
		all = append(all, h.Table[id-1].Envelope)
	}
	return all
}

func deliveries(h *check.History, ids ...int) []check.Event {
	var all []check.Event
	for _, e := range of(h, ids...) {
		all = append(all, check.Event{Kind: check.Delivered, Topic: e.Meta.Topic, Envelope: e})
	}
	return all
}

func TestACorrectHistoryPasses(t *testing.T) {
	require.Empty(t, check.All(correct()))
}

// Each case breaks one promise, and the checker of that promise must say so.
func TestEachBrokenPromiseIsFound(t *testing.T) {
	for what, c := range map[string]struct {
		invariant string
		doctor    func(h *check.History)
	}{
		"an inbox whose log does not apply":   {"inboxes", func(h *check.History) { h.Inboxes[0].Broken = "its log cannot be replayed" }},
		"an inbox that takes no update":       {"inboxes", func(h *check.History) { h.Inboxes[0].Extended = false }},
		"a wallet that is found elsewhere":    {"inboxes", func(h *check.History) { h.Inboxes[0].Lookups[0].Found = "b" }},
		"an acknowledged row is missing":      {"I1", func(h *check.History) { h.Table = append(h.Table[:2], h.Table[3:]...); delete(h.Heads, groupB) }},
		"acknowledged with other metadata":    {"I1", func(h *check.History) { h.Publishes[0].Metas[0].ServerNS++ }},
		"acknowledged is what another sent":   {"I1", func(h *check.History) { h.Publishes[0].Sent[0] = h.Table[3].Content }},
		"an answer too few":                   {"I1", func(h *check.History) { h.Publishes[0].Metas = nil }},
		"a refused content is stored":         {"I1", func(h *check.History) { h.Refused[h.Table[2].Content] = true }},
		"a row that nobody sent":              {"I1", func(h *check.History) { delete(h.Offered, h.Table[2].Content) }},
		"a head that is behind":               {"I1", func(h *check.History) { h.Heads[groupA] = 2 }},
		"commit order differs on a topic":     {"I2", func(h *check.History) { h.Table[0].CommittedAt = h.Table[3].CommittedAt.Add(1) }},
		"sent after a higher one was done":    {"I2", func(h *check.History) { late(h, 0) }},
		"a page skips a row":                  {"I2", func(h *check.History) { h.Pages[0].Envelopes = of(h, 2); h.Pages[0].HasMore = true }},
		"a page repeats a row":                {"I2", func(h *check.History) { h.Pages[0].Envelopes = of(h, 1, 1) }},
		"a page is out of order":              {"I2", func(h *check.History) { h.Pages[2].Envelopes = of(h, 3, 2) }},
		"a page begins below its cursor":      {"I2", func(h *check.History) { h.Pages[1].Envelopes = of(h, 1, 2) }},
		"a page of a topic not asked for":     {"I2", func(h *check.History) { h.Pages[1].Envelopes = of(h, 3) }},
		"a page lacks what was acknowledged":  {"I2", func(h *check.History) { h.Pages[2].Envelopes = of(h, 3) }},
		"has_more is wrong":                   {"I2", func(h *check.History) { h.Pages[1].HasMore = false }},
		"the newest read shows no row":        {"I2", func(h *check.History) { h.Newest[0].Meta.SequenceID = 99 }},
		"commit order differs among inboxes":  {"I3", func(h *check.History) { h.Table[5].CommittedAt = epoch }},
		"an update sent after a later one":    {"I3", func(h *check.History) { late(h, 5) }},
		"two rows of one content":             {"I4", func(h *check.History) { h.Table[3].Meta.MessageHash = h.Table[1].Meta.MessageHash }},
		"two answers for one content":         {"I4", func(h *check.History) { h.Publishes[7].Metas[0].SequenceID = 4 }},
		"a stream skips a row":                {"I5/I6", func(h *check.History) { h.Streams[0].Events = drop(h.Streams[0].Events, 1) }},
		"a stream repeats a row":              {"I5/I6", func(h *check.History) { h.Streams[0].Events = append(h.Streams[0].Events, deliveries(h, 4)...) }},
		"a stream swaps two rows":             {"I5/I6", func(h *check.History) { e := h.Streams[0].Events; e[1], e[2] = e[2], e[1] }},
		"a stream starts below its cursor":    {"I5/I6", func(h *check.History) { h.Streams[0].Events[0].Cursor = 2 }},
		"a drained stream lacks its last row": {"I5/I6", func(h *check.History) { h.Streams[0].Events = drop(h.Streams[0].Events, 2) }},
		"a message after its topic's removal": {"I5/I6", func(h *check.History) { h.Streams[1].Events = append(h.Streams[1].Events, deliveries(h, 3)...) }},
		"a message before its registration":   {"I5/I6", func(h *check.History) { h.Streams[1].Events = drop(h.Streams[1].Events, 0) }},
		"a topic is registered twice": {"I5/I6", func(h *check.History) {
			h.Streams[1].Events = slices.Insert(h.Streams[1].Events, 0, h.Streams[1].Events[0])
		}},
		"a target that never existed":       {"I5/I6", func(h *check.History) { h.Streams[0].Events[0].Target = 3 }},
		"a stream alters metadata":          {"I5/I6", func(h *check.History) { h.Streams[0].Events[1].Envelope.Meta.ExpiryNS = 7 }},
		"the table has other bytes":         {"I7", func(h *check.History) { h.Table[0].Content[9] = 1 }},
		"a query returns other bytes":       {"I7", func(h *check.History) { h.Pages[0].Envelopes[0].Content[9] = 1 }},
		"a newest read returns other bytes": {"I7", func(h *check.History) { h.Newest[0].Content[9] = 1 }},
		"a stream delivers other bytes":     {"I7", func(h *check.History) { h.Streams[0].Events[1].Envelope.Content[9] = 1 }},
		"an answer has another hash":        {"I7", func(h *check.History) { h.Publishes[0].Metas[0].MessageHash[9] = 1 }},
		"an id was given twice": {"I11", func(h *check.History) {
			lost := h.Table[3].Envelope
			lost.Meta.MessageHash[9], lost.Content[9] = 1, 1
			h.Lost[4] = true
			h.Streams[1].Events = append(h.Streams[1].Events, check.Event{Kind: check.Delivered, Topic: groupA, Envelope: lost})
		}},
	} {
		t.Run(strings.ReplaceAll(what, " ", "_"), func(t *testing.T) {
			h := correct()
			c.doctor(h)
			found := map[string]bool{}
			for _, violation := range check.All(h) {
				found[violation.Invariant] = true
			}
			require.True(t, found[c.invariant], "%s broken, found %v", c.invariant, check.All(h))
		})
	}
}

// late makes a publish one that began long after all others had ended.
func late(h *check.History, i int) {
	h.Publishes[i].Begun, h.Publishes[i].Ended = time.Minute, time.Hour
	h.Offered[h.Publishes[i].Sent[0]] = time.Minute
}

// A content that failed first, was stored nevertheless, and was acknowledged when
// it was sent again, is older than its acknowledged request.
func TestAnEarlierFailedAttemptCountsAsItsBegin(t *testing.T) {
	h := correct()
	h.Publishes[0].Begun, h.Publishes[0].Ended = time.Minute, time.Hour
	require.Empty(t, check.All(h))
}

func drop(events []check.Event, at int) []check.Event {
	return append(events[:at:at], events[at+1:]...)
}

// An announced loss excuses a missing row, and nothing else.
func TestAnAnnouncedLossIsNoViolation(t *testing.T) {
	h := correct()
	h.Pages = append(h.Pages, check.Page{Cursors: map[topic.Topic]topic.SequenceID{inboxA: 0}, Envelopes: of(h, 5, 7)})
	h.Streams = append(h.Streams, check.Stream{Events: append([]check.Event{{Kind: check.Registered, Topic: inboxA, Target: 7}}, deliveries(h, 5, 7)...)})
	h.Table, h.Heads[inboxA] = h.Table[:6], 5
	require.NotEmpty(t, check.All(h))
	h.Lost[7] = true
	require.Empty(t, check.All(h))
}

func TestAFloodOfViolationsIsCutShort(t *testing.T) {
	h := correct()
	for range 1000 {
		h.Newest = append(h.Newest, check.Envelope{Meta: envelope.Meta{SequenceID: 99, Topic: groupA}})
	}
	found := check.All(h)
	require.Less(t, len(found), 50)
	require.Contains(t, found[len(found)-1].What, "980", "%v", found)
}
