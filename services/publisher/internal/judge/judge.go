// Package judge decides, once all locks of a publish transaction are held, what
// becomes of each request that shares it. It is pure: it sees what the
// transaction found and returns what to store.
package judge

import (
	"slices"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

// Rules are what the judgement depends on beside the requests.
type Rules struct {
	Limits    limit.Config
	Retention limit.Retention
}

// Group is the requests that share a transaction, in arrival order.
type Group struct {
	rules    Rules
	requests []*request.Request
	topics   []topic.Topic
	keys     []store.Key
	places   []place // of each envelope of each request, in order
	identity bool
}

// place says where an envelope is in the group's topics and keys.
type place struct{ topic, key int }

// NewGroup prepares a group: one request or more.
func NewGroup(rules Rules, requests []*request.Request) *Group {
	g := &Group{rules: rules, requests: requests}
	envelopes := 0
	for _, r := range requests {
		envelopes += len(r.Envelopes)
		g.identity = g.identity || r.Identity
	}
	g.collectTopics()
	topicPlaces := make(map[topic.Topic]int, len(g.topics))
	for i, name := range g.topics {
		topicPlaces[name] = i
	}
	g.keys = make([]store.Key, 0, envelopes)
	g.places = make([]place, 0, envelopes)
	var keyPlaces map[store.Key]int
	if len(requests) > 1 { // within a request they are distinct
		keyPlaces = make(map[store.Key]int, envelopes)
	}
	for _, r := range requests {
		for i := range r.Envelopes {
			key := store.Key{Topic: r.Envelopes[i].Topic, Hash: r.Envelopes[i].Hash}
			at, known := keyPlaces[key]
			if !known {
				at = len(g.keys)
				g.keys = append(g.keys, key)
				if keyPlaces != nil {
					keyPlaces[key] = at
				}
			}
			g.places = append(g.places, place{topic: topicPlaces[key.Topic], key: at})
		}
	}
	return g
}

func (g *Group) collectTopics() {
	if len(g.requests) == 1 {
		g.topics = g.requests[0].Topics
		return
	}
	for _, r := range g.requests {
		g.topics = append(g.topics, r.Topics...)
	}
	slices.SortFunc(g.topics, func(a, b topic.Topic) int { return strings.Compare(string(a), string(b)) })
	g.topics = slices.Compact(g.topics)
}

// Batch is what the transaction has to lock and look at. If nothing that it may
// find can refuse a request, it also has all there is to store.
func (g *Group) Batch() store.Batch {
	batch := store.Batch{Topics: g.topics, Keys: g.keys, Identity: g.identity}
	if g.isUnconditional() {
		batch.Drafts = g.drafts()
	}
	return batch
}

// maxAtOnce bounds what is written in vain when a group cannot be stored at once.
// In a larger group the round trip that is saved matters little.
const maxAtOnce = 1 << 20

// isUnconditional says that every envelope of the group is either stored already
// or to be stored.
func (g *Group) isUnconditional() bool {
	if g.identity {
		return false
	}
	bytes := 0
	for _, r := range g.requests {
		bytes += r.Bytes
		if bytes > maxAtOnce || !r.FitsAnyResponse(g.rules.Limits) {
			return false
		}
		for i := range r.Envelopes {
			if r.Envelopes[i].Failure != nil {
				return false
			}
		}
	}
	return true
}

func (g *Group) drafts() []store.Draft {
	drafts := make([]store.Draft, len(g.keys))
	at := 0
	for _, r := range g.requests {
		for i := range r.Envelopes {
			e := &r.Envelopes[i]
			drafts[g.places[at].key] = store.Draft{Payload: e.Canonical, IsCommitOrProposal: e.IsCommitOrProposal, Retention: g.rules.retention(e)}
			at++
		}
	}
	return drafts
}

// bench is the state of a judgement: what is stored, and what will be.
type bench struct {
	*Group
	locked store.Locked
	// known has the metadata of each key that is stored or will be.
	known []*envelope.Meta
	heads []topic.SequenceID
	used  int // of locked.IDs

	writes  store.Writes
	notices []notice.Stored
}

// Judge decides every request of the group, in arrival order, and sets its Metas
// or Err; of a transaction that is committed it only tells each what was stored.
// Each sees what is stored and what earlier accepted requests of the group will
// store. The error is about the group as a whole.
func (g *Group) Judge(locked store.Locked) (store.Writes, []notice.Stored, error) {
	b := &bench{Group: g, locked: locked, known: make([]*envelope.Meta, len(g.keys)), heads: slices.Clone(locked.Heads)}
	for i, meta := range locked.Stored {
		b.known[i] = &meta
	}
	b.writes.Rows = make([]store.Row, 0, len(g.keys))
	b.notices = make([]notice.Stored, 0, len(g.keys))
	first := 0
	for _, r := range g.requests {
		places := g.places[first : first+len(r.Envelopes)]
		first += len(r.Envelopes)
		r.Metas, r.Err = nil, b.refusal(r, places)
		if r.Err != nil {
			continue
		}
		metas, used, err := b.assign(r, places)
		if err != nil {
			return store.Writes{}, nil, err
		}
		if r.Err = r.CheckResponse(metas, g.rules.Limits); r.Err != nil {
			continue
		}
		r.Metas, r.Stored, b.used = metas, 0, used
		b.accept(r, places, metas)
	}
	b.writes.Heads = make([]topic.SequenceID, len(b.heads))
	for i, head := range b.heads {
		if head != locked.Heads[i] {
			b.writes.Heads[i] = head
		}
	}
	return b.writes, b.notices, nil
}

// refusal is why a request cannot be stored: an identity update whose inbox
// moved on, else the failure of the lowest index. Envelopes that are stored do
// not count (API-036).
func (b *bench) refusal(r *request.Request, places []place) error {
	var lowest *fault.Error
	for i := range r.Envelopes {
		e := &r.Envelopes[i]
		if b.known[places[i].key] != nil {
			continue
		}
		if e.Update != nil && e.Update.Version != b.heads[places[i].topic] {
			return fault.Errorf(fault.HeadMoved,
				"another identity update of the inbox was stored meanwhile: read the inbox's updates, validate against them and publish again")
		}
		if e.Failure != nil && lowest == nil {
			lowest = e.Failure.At(e.Index)
		}
	}
	if lowest != nil {
		return lowest
	}
	return nil
}

// assign gives each envelope of a request its metadata, without storing yet, and
// returns how many ids are used up if they are stored. Its error is about the
// group as a whole.
func (b *bench) assign(r *request.Request, places []place) (metas []envelope.Meta, used int, err error) {
	metas, used = make([]envelope.Meta, len(r.Envelopes)), b.used
	for i := range r.Envelopes {
		e := &r.Envelopes[i]
		if known := b.known[places[i].key]; known != nil {
			metas[i] = *known
			continue
		}
		expiry, err := b.rules.expiry(e, b.locked.ServerNS)
		if err != nil {
			return nil, 0, err
		}
		metas[i] = envelope.Meta{
			Topic:              e.Topic,
			SequenceID:         b.locked.IDs[used],
			ServerNS:           b.locked.ServerNS,
			ExpiryNS:           expiry,
			MessageHash:        e.Hash,
			IsCommitOrProposal: e.IsCommitOrProposal,
		}
		used++
		if metas[i].SequenceID <= b.heads[places[i].topic] {
			return nil, 0, fault.Errorf(fault.Broken, "the sequence gave an id that is not above the head of its topic")
		}
	}
	return metas, used, nil
}

// accept puts a request's new envelopes among what is written.
func (b *bench) accept(r *request.Request, places []place, metas []envelope.Meta) {
	for i := range r.Envelopes {
		e, at := &r.Envelopes[i], places[i]
		if b.known[at.key] != nil {
			continue
		}
		meta := &metas[i]
		b.known[at.key] = meta
		r.Stored++
		b.writes.Rows = append(b.writes.Rows, store.Row{Meta: *meta, Payload: e.Canonical})
		b.notices = append(b.notices, notice.Stored{
			Meta:     *meta,
			Payload:  r.Lasting(e.Canonical),
			Previous: b.heads[at.topic],
			Lineage:  notice.Lineage(b.locked.Lineage),
			Trace:    r.Trace,
		})
		b.heads[at.topic] = meta.SequenceID
		if e.Update != nil {
			b.writes.Added = appendAt(b.writes.Added, e.Update.Added, meta.SequenceID)
			b.writes.Removed = appendAt(b.writes.Removed, e.Update.Removed, meta.SequenceID)
		}
	}
}

func appendAt(all, changes []store.Association, id topic.SequenceID) []store.Association {
	for _, change := range changes {
		change.SequenceID = id
		all = append(all, change)
	}
	return all
}

// retention is how long an envelope is kept at least; 0 is for ever (API-021).
func (rules *Rules) retention(e *request.Envelope) time.Duration {
	if e.IsCommitOrProposal {
		return 0
	}
	switch e.Topic.Kind() {
	case topic.GroupMessage:
		return rules.Retention.GroupMessage
	case topic.Welcome:
		return rules.Retention.Welcome
	case topic.KeyPackage:
		return rules.Retention.KeyPackage
	default:
		return 0
	}
}

// expiry is when an envelope may be deleted; 0 is never.
func (rules *Rules) expiry(e *request.Envelope, serverNS int64) (int64, error) {
	retention := rules.retention(e)
	if retention == 0 {
		return 0, nil
	}
	expiry, ok := limit.Expiry(serverNS, retention)
	if !ok {
		return 0, fault.Errorf(fault.Broken, "the retention period does not fit an expiry time")
	}
	return expiry, nil
}
