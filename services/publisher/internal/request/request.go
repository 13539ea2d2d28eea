// Package request reads a PublishRequest: it splits the list, parses and bounds
// each envelope, and collapses identical ones while it keeps every index.
package request

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/payload"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
)

// Envelope is one distinct envelope of a request.
type Envelope struct {
	*payload.Payload
	// Index is the first place of the envelope in the request.
	Index int
	// Failure is why the envelope must not be stored. It does not matter if the
	// envelope turns out to be stored already (API-036).
	Failure *fault.Error
	// Update is set for an identity update that was validated.
	Update *Update
}

// Update is what the validation of an identity update found.
type Update struct {
	// Version is the last sequence id of the history it was validated against.
	Version topic.SequenceID
	// Added and Removed are the changes in who can be looked up. Their sequence
	// ids are not known yet.
	Added, Removed []store.Association
}

// Request is a parsed publish and, once it was judged, its outcome.
type Request struct {
	// Envelopes are the distinct ones, in request order.
	Envelopes []Envelope
	// Topics are sorted and distinct.
	Topics []topic.Topic
	// Bytes is the sum of the canonical lengths of the distinct envelopes.
	Bytes int
	// Wire is the length of the request as it came. Payloads alias it.
	Wire int
	// Identity says that identity updates are among the envelopes.
	Identity bool
	// Trace goes into the notices.
	Trace notice.Trace

	// Metas are the stored metadata of Envelopes, set by the judge when Err is nil.
	Metas []envelope.Meta
	// Stored is how many envelopes were new, set with Metas.
	Stored int
	// Err is the judge's refusal.
	Err error

	// places has, for each envelope as requested, its index in Envelopes. It is
	// nil when all are distinct.
	places []int32
}

// Parse reads an encoded PublishRequest. A failure that is about the request as
// a whole is returned as the error. If an envelope fails, the request holds
// those before it, and failed says which and why: it will be refused, yet an
// earlier envelope may be the one to name. What is decoded on the way, one envelope at
// a time, is charged to the budget.
func Parse(ctx context.Context, encoded []byte, limits limit.Config, decoding *budget.Budget) (parsed *Request, failed *fault.Error, err error) {
	n, err := count(encoded)
	if err != nil {
		return nil, nil, err
	}
	r := &Request{Envelopes: make([]Envelope, 0, min(n, maxPrepared)), Wire: len(encoded)}
	p := parser{Request: r, limits: limits, decoding: decoding.Holder(), seen: newIndex(n)}
	for m := wire.Read(encoded); failed == nil && m.Next(); { // it was read to its end above
		if m.IsBytes(envelopesField) {
			failed = p.add(ctx, m.Bytes())
			p.index++
		}
	}
	r.collectTopics()
	if failed != nil {
		return r, failed, nil
	}
	return r, nil, r.check(p.encoded, limits)
}

// maxPrepared bounds what is made ready for envelopes that may turn out to be
// none: 25 MiB have room for thirteen million empty ones.
const maxPrepared = 1024

// parser takes the envelopes of a request one by one.
type parser struct {
	*Request
	limits   limit.Config
	decoding *budget.Holder
	seen     index
	inboxes  map[topic.Topic]struct{}
	// index is the place of the next envelope.
	index int
	// encoded is the canonical length of the request so far.
	encoded int
}

// add takes the next envelope in, or says why the request cannot be stored.
func (p *parser) add(ctx context.Context, one []byte) *fault.Error {
	parsed, err := payload.ParseWithin(ctx, one, int(p.limits.MaxEnvelopeBytes), p.decoding)
	if err != nil {
		return fault.Of(err).At(p.index)
	}
	p.encoded += 1 + protowire.SizeBytes(len(parsed.Canonical))
	if at, ok := p.seen.find(parsed); ok {
		p.repeat(p.index, at)
		return nil
	}
	if parsed.Topic.Kind() == topic.IdentityUpdate {
		if _, ok := p.inboxes[parsed.Topic]; ok {
			return fault.Invalidf(fault.InvalidIdentityUpdate,
				"the request has two different identity updates for one inbox, expected at most one").At(p.index)
		}
		if p.inboxes == nil {
			p.inboxes = map[topic.Topic]struct{}{}
		}
		p.inboxes[parsed.Topic] = struct{}{}
		p.Identity = true
	}
	if p.places != nil {
		p.places = append(p.places, int32(len(p.Envelopes)))
	}
	p.seen.add(parsed, len(p.Envelopes))
	p.Envelopes = append(p.Envelopes, Envelope{Payload: parsed, Index: p.index})
	p.Bytes += len(parsed.Canonical)
	return nil
}

// repeat notes that place i holds the same envelope as an earlier one.
func (r *Request) repeat(i, at int) {
	if r.places == nil {
		r.places = make([]int32, i)
		for j := range r.places {
			r.places[j] = int32(j)
		}
	}
	r.places = append(r.places, int32(at))
}

func (r *Request) collectTopics() {
	r.Topics = make([]topic.Topic, 0, min(len(r.Envelopes), 64))
	for i := range r.Envelopes {
		name := r.Envelopes[i].Topic
		if n := len(r.Topics); n > 0 && r.Topics[n-1] == name {
			continue
		}
		r.Topics = append(r.Topics, name)
	}
	slices.SortFunc(r.Topics, func(a, b topic.Topic) int { return strings.Compare(string(a), string(b)) })
	r.Topics = slices.Compact(r.Topics)
}

// check holds the limits of the request as a whole (API-031).
func (r *Request) check(encoded int, limits limit.Config) error {
	if n := len(r.Topics); n > int(limits.MaxPublishTopics) {
		return fault.Invalidf(fault.TooLarge, "the request addresses %d topics, expected at most %d", n, limits.MaxPublishTopics)
	}
	if uint64(encoded) > limits.MaxRequestBytes {
		return fault.Invalidf(fault.TooLarge, "the request has %d bytes in its canonical encoding, expected at most %d", encoded, limits.MaxRequestBytes)
	}
	// What each entry of the response has at least. The exact size is known only
	// with the sequence ids; see CheckResponse.
	least := 0
	for i := range r.Count() {
		e := &r.Envelopes[r.distinct(i)]
		meta := envelope.Meta{Topic: e.Topic, SequenceID: 1, IsCommitOrProposal: e.IsCommitOrProposal}
		least += 1 + protowire.SizeBytes(meta.Size())
	}
	return checkResponse(least, limits)
}

func checkResponse(size int, limits limit.Config) error {
	if uint64(size) > limits.MaxResponseBytes {
		return fault.Errorf(fault.TooLong, "the response would have %d bytes or more, expected at most %d: publish fewer envelopes in one request",
			size, limits.MaxResponseBytes)
	}
	return nil
}

// NeedsValidation says whether anything beside the structure has to be checked.
func (r *Request) NeedsValidation() bool {
	for i := range r.Envelopes {
		switch r.Envelopes[i].Topic.Kind() {
		case topic.KeyPackage, topic.IdentityUpdate:
			return true
		}
	}
	return false
}

// AllTopics implements groupcommit.Work.
func (r *Request) AllTopics() []topic.Topic { return r.Topics }

// Size implements groupcommit.Work.
func (r *Request) Size() (rows, bytes int) { return len(r.Envelopes), r.Bytes }

// HasIdentity implements groupcommit.Work.
func (r *Request) HasIdentity() bool { return r.Identity }

// Count is the number of envelopes as requested.
func (r *Request) Count() int {
	if r.places != nil {
		return len(r.places)
	}
	return len(r.Envelopes)
}

// Lasting is a payload for who keeps it when the request has been answered. One
// that would keep alive a request of several times its length is copied.
func (r *Request) Lasting(canonical []byte) []byte {
	if r.Wire <= 4*len(canonical)+1024 {
		return canonical
	}
	return bytes.Clone(canonical)
}

// distinct is where Envelopes has the envelope at a place of the request.
func (r *Request) distinct(i int) int {
	if r.places != nil {
		return int(r.places[i])
	}
	return i
}

// FitsAnyResponse says that the response is short enough whatever its numbers are.
func (r *Request) FitsAnyResponse(limits limit.Config) bool {
	size := uint64(0)
	for i := range r.Envelopes {
		largest := envelope.Meta{Topic: r.Envelopes[i].Topic, SequenceID: math.MaxInt64, ServerNS: math.MaxInt64, ExpiryNS: math.MaxInt64, IsCommitOrProposal: true}
		size = max(size, uint64(1+protowire.SizeBytes(largest.Size())))
	}
	return size*uint64(r.Count()) <= limits.MaxResponseBytes
}

// CheckResponse refuses metadata whose response would be too long.
func (r *Request) CheckResponse(metas []envelope.Meta, limits limit.Config) error {
	return checkResponse(r.responseSize(metas), limits)
}

func (r *Request) responseSize(metas []envelope.Meta) int {
	size := 0
	for i := range r.Count() {
		size += 1 + protowire.SizeBytes(metas[r.distinct(i)].Size())
	}
	return size
}

// Response encodes the PublishResponse of a stored request: one entry per
// envelope, in request order (API-032).
func (r *Request) Response() []byte {
	const envelopeMetas = 1
	encoded := make([]byte, 0, r.responseSize(r.Metas))
	for i := range r.Count() {
		encoded = envelope.AppendMetaField(encoded, envelopeMetas, &r.Metas[r.distinct(i)])
	}
	return encoded
}

// index finds identical envelopes. A request of one needs no map.
type index map[store.Key]int

func newIndex(n int) index {
	if n < 2 {
		return nil
	}
	return make(index, min(n, maxPrepared))
}

func keyOf(p *payload.Payload) store.Key { return store.Key{Topic: p.Topic, Hash: p.Hash} }

func (x index) find(p *payload.Payload) (at int, ok bool) {
	if x == nil {
		return 0, false
	}
	at, ok = x[keyOf(p)]
	return at, ok
}

func (x index) add(p *payload.Payload, at int) {
	if x != nil {
		x[keyOf(p)] = at
	}
}
