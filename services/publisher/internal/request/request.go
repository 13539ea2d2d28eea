// Package request reads a PublishRequest: it splits the list, parses and bounds
// each envelope, and collapses identical ones while it keeps every index.
package request

import (
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/payload"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
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
// earlier envelope may be the one to name.
func Parse(wire []byte, limits limit.Config) (parsed *Request, failed *fault.Error, err error) {
	raw, err := split(wire)
	if err != nil {
		return nil, nil, err
	}
	r := &Request{Envelopes: make([]Envelope, 0, len(raw))}
	seen := newIndex(len(raw))
	inboxes := map[topic.Topic]struct{}{}
	encoded := 0
	for i, one := range raw {
		parsed, err := payload.Parse(one, int(limits.MaxEnvelopeBytes))
		if err != nil {
			failed = fault.Of(err).At(i)
			break
		}
		encoded += 1 + protowire.SizeBytes(len(parsed.Canonical))
		if at, ok := seen.find(parsed); ok {
			r.repeat(i, at)
			continue
		}
		if parsed.Topic.Kind() == topic.IdentityUpdate {
			if _, ok := inboxes[parsed.Topic]; ok {
				failed = fault.Invalidf(fault.InvalidIdentityUpdate,
					"the request has two different identity updates for one inbox, expected at most one").At(i)
				break
			}
			inboxes[parsed.Topic] = struct{}{}
			r.Identity = true
		}
		if r.places != nil {
			r.places = append(r.places, int32(len(r.Envelopes)))
		}
		seen.add(parsed, len(r.Envelopes))
		r.Envelopes = append(r.Envelopes, Envelope{Payload: parsed, Index: i})
		r.Bytes += len(parsed.Canonical)
	}
	r.collectTopics()
	if failed != nil {
		return r, failed, nil
	}
	return r, nil, r.check(encoded, limits)
}

// repeat notes that place i holds the same envelope as an earlier one.
func (r *Request) repeat(i, at int) {
	if r.places == nil {
		r.places = make([]int32, i, cap(r.Envelopes))
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
	// with the sequence ids; see ResponseSize.
	least := 0
	for i := range r.Envelopes {
		meta := envelope.Meta{Topic: r.Envelopes[i].Topic, SequenceID: 1, IsCommitOrProposal: r.Envelopes[i].IsCommitOrProposal}
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

// metaAt is the metadata of the envelope at a place of the request.
func metaAt(r *Request, metas []envelope.Meta, i int) *envelope.Meta {
	if r.places != nil {
		i = int(r.places[i])
	}
	return &metas[i]
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
		size += 1 + protowire.SizeBytes(metaAt(r, metas, i).Size())
	}
	return size
}

// Response encodes the PublishResponse of a stored request: one entry per
// envelope, in request order (API-032).
func (r *Request) Response() []byte {
	const envelopeMetas = 1
	encoded := make([]byte, 0, r.responseSize(r.Metas))
	for i := range r.Count() {
		encoded = envelope.AppendMetaField(encoded, envelopeMetas, metaAt(r, r.Metas, i))
	}
	return encoded
}

// index finds identical envelopes. A request of one needs no map.
type index map[store.Key]int

func newIndex(n int) index {
	if n < 2 {
		return nil
	}
	return make(index, n)
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
