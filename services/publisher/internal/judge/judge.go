// Package judge decides, once all locks of a publish transaction are held, what
// becomes of each request that shares it, and tells the requests what was stored. It is
// pure. Its place in a publish is described in package publisher.
package judge

import (
	"errors"
	"iter"
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

// ErrOutdated is the refusal of a request whose findings are about another server
// than the one that was to store it, or about an envelope that is gone: it has to be
// validated again. Nothing of it is stored.
var ErrOutdated = fault.Wrap(fault.Unavailable, errors.New("findings of another era"), "the database was replaced by another server just now")

// Group is the requests that share a transaction, in arrival order.
type Group struct {
	rules    Rules
	requests []*request.Request
	batch    store.Batch
	places   []int // the draft of each envelope of each request, in order
}

// NewGroup prepares a group: one request or more.
func NewGroup(rules Rules, requests []*request.Request) *Group {
	g := &Group{rules: rules, requests: requests}
	envelopes := 0
	for _, r := range requests {
		r.Metas, r.Stored, r.Err = nil, 0, nil
		envelopes += len(r.Envelopes)
		g.batch.Identity = g.batch.Identity || r.Identity
	}
	g.collectTopics()
	g.collectDrafts(envelopes)
	g.batch.Certain = g.isCertain()
	return g
}

func (g *Group) collectTopics() {
	if len(g.requests) == 1 {
		g.batch.Topics = g.requests[0].Topics
		return
	}
	var topics []topic.Topic
	for _, r := range g.requests {
		topics = append(topics, r.Topics...)
	}
	slices.SortFunc(topics, func(a, b topic.Topic) int { return strings.Compare(string(a), string(b)) })
	g.batch.Topics = slices.Compact(topics)
}

// collectDrafts makes one draft of all copies of an envelope.
func (g *Group) collectDrafts(envelopes int) {
	topics := make(map[topic.Topic]int, len(g.batch.Topics))
	for i, name := range g.batch.Topics {
		topics[name] = i
	}
	g.batch.Drafts = make([]store.Draft, 0, envelopes)
	g.places = make([]int, 0, envelopes)
	var known map[store.Key]int
	if len(g.requests) > 1 { // within a request they are distinct
		known = make(map[store.Key]int, envelopes)
	}
	for _, r := range g.requests {
		for i := range r.Envelopes {
			e := &r.Envelopes[i]
			key := store.Key{Topic: e.Topic, Hash: e.Hash}
			at, copied := known[key]
			if !copied {
				at = len(g.batch.Drafts)
				g.batch.Drafts = append(g.batch.Drafts, store.Draft{
					Topic: topics[e.Topic], Hash: e.Hash, Payload: e.Canonical, IsCommitOrProposal: e.IsCommitOrProposal, Retention: g.rules.retention(e),
				})
				if known != nil {
					known[key] = at
				}
			}
			g.places = append(g.places, at)
		}
	}
}

// Batch is what the transaction has to lock, to look at and perhaps to store.
func (g *Group) Batch() store.Batch { return g.batch }

// maxAtOnce bounds what is written in vain when a group cannot be stored at once.
// In a larger group the round trip that is saved matters little.
const maxAtOnce = 1 << 20

// isCertain says that every envelope of the group is either stored already or to be
// stored.
func (g *Group) isCertain() bool {
	if g.batch.Identity {
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

// each goes through the requests, with the drafts of their envelopes.
func (g *Group) each() iter.Seq2[*request.Request, []int] {
	return func(yield func(*request.Request, []int) bool) {
		first := 0
		for _, r := range g.requests {
			drafts := g.places[first : first+len(r.Envelopes)]
			first += len(r.Envelopes)
			if !yield(r, drafts) {
				return
			}
		}
	}
}

// Decide says what to store, in arrival order, and sets the Err of the requests that
// are refused. Each request sees what is stored and what earlier accepted requests of
// the group will store. The error is about the group as a whole.
func (g *Group) Decide(locked store.Locked) (store.Verdict, error) {
	b := &bench{Group: g, locked: locked, known: make([]bool, len(g.batch.Drafts)), moved: make([]bool, len(g.batch.Topics))}
	for draft := range locked.Stored {
		b.known[draft] = true
	}
	b.nth = make([]int, len(g.batch.Drafts))
	b.verdict.Store = make([]int, 0, len(g.batch.Drafts))
	for r, drafts := range g.each() {
		refusal, err := b.refusal(r, drafts)
		if err != nil {
			return store.Verdict{}, err
		}
		if r.Err = refusal; refusal == nil {
			b.accept(r, drafts)
		}
	}
	return b.verdict, nil
}

// Tell sets the Metas of the requests that are not refused, and returns the notices of
// what is new.
func (g *Group) Tell(outcome store.Outcome) []notice.Stored {
	notices := make([]notice.Stored, 0, len(outcome.Drafts))
	told := make([]bool, len(outcome.Drafts))
	for r, drafts := range g.each() {
		if r.Err != nil {
			continue
		}
		r.Metas, r.Stored = make([]envelope.Meta, len(drafts)), 0
		for i, draft := range drafts {
			result := &outcome.Drafts[draft]
			r.Metas[i] = result.Meta
			if !result.New || told[draft] {
				continue
			}
			told[draft] = true
			r.Stored++
			notices = append(notices, notice.Stored{
				Meta:     result.Meta,
				Payload:  r.Lasting(r.Envelopes[i].Canonical),
				Previous: result.Previous,
				Lineage:  notice.Lineage(outcome.Lineage),
				Trace:    r.Trace,
			})
		}
	}
	return notices
}

// bench is the state of a judgement.
type bench struct {
	*Group
	locked store.Locked
	// known are the drafts that are stored or will be, and nth, of the latter, which one
	// it is; moved are the topics whose head will be another one.
	known, moved []bool
	nth          []int
	verdict      store.Verdict
}

// refusal is why a request cannot be stored: findings that do not hold here, an
// identity update whose inbox moved on, else the failure of the lowest index, else
// that its response would be too long. Envelopes that are stored do not count (API-036).
// The last error is about the group as a whole.
func (b *bench) refusal(r *request.Request, drafts []int) (refusal, err error) {
	var lowest *fault.Error
	for i := range r.Envelopes {
		e := &r.Envelopes[i]
		if b.known[drafts[i]] {
			continue
		}
		if e.Topic.Kind() == topic.IdentityUpdate {
			if outdated := b.outdated(r, e, b.batch.Drafts[drafts[i]].Topic); outdated != nil {
				return outdated, nil
			}
		}
		if e.Failure != nil && lowest == nil {
			lowest = e.Failure.At(e.Index)
		}
	}
	if lowest != nil {
		return lowest, nil
	}
	return b.checkResponse(r, drafts)
}

// outdated is why what was found about an identity update that is not stored says
// nothing any more. Without an Update validation saw it stored.
func (b *bench) outdated(r *request.Request, e *request.Envelope, at int) error {
	switch {
	case r.Era != b.locked.Era || e.Update == nil:
		return ErrOutdated
	case b.moved[at] || e.Update.Version != b.locked.Heads[at]:
		return fault.Errorf(fault.HeadMoved,
			"another identity update of the inbox was stored meanwhile: read the inbox's updates, validate against them and publish again")
	default:
		return nil
	}
}

// checkResponse refuses a request whose response would be too long. The last error is
// about the group as a whole.
func (b *bench) checkResponse(r *request.Request, drafts []int) (refusal, err error) {
	if r.FitsAnyResponse(b.rules.Limits) {
		return nil, nil
	}
	metas, next := make([]envelope.Meta, len(drafts)), len(b.verdict.Store)
	for i, draft := range drafts {
		stored, ok := b.locked.Stored[draft]
		switch {
		case ok:
			metas[i] = stored
			continue
		case b.known[draft]:
			metas[i], err = b.locked.MetaOf(&b.batch, draft, b.nth[draft])
		default:
			metas[i], err = b.locked.MetaOf(&b.batch, draft, next)
			next++
		}
		if err != nil {
			return nil, err
		}
	}
	return r.CheckResponse(metas, b.rules.Limits), nil
}

// accept puts a request's new envelopes among what is stored.
func (b *bench) accept(r *request.Request, drafts []int) {
	for i, draft := range drafts {
		if b.known[draft] {
			continue
		}
		b.known[draft], b.nth[draft] = true, len(b.verdict.Store)
		b.moved[b.batch.Drafts[draft].Topic] = true
		b.verdict.Store = append(b.verdict.Store, draft)
		if update := r.Envelopes[i].Update; update != nil {
			b.verdict.Added = appendOf(b.verdict.Added, update.Added, draft)
			b.verdict.Removed = appendOf(b.verdict.Removed, update.Removed, draft)
		}
	}
}

func appendOf(all []store.Change, changes []store.Association, draft int) []store.Change {
	for _, change := range changes {
		all = append(all, store.Change{Draft: draft, Association: change})
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
