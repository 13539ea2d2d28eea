package validate

import (
	"context"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/payload"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// The budgets. A history is read in parts of at most partBytes, if its updates are not
// longer each, whatever it has in all.
const (
	decodingBytes  = 64 << 20
	historiesBytes = 176 << 20
	partBytes      = 4 << 20
	// decodedTimes is how many times its length an envelope can take when it is decoded.
	decodedTimes = 11
)

// Budgets bound what is in memory for the validation of identity updates.
type Budgets struct {
	// Decoding is for envelopes that are being decoded. Nobody waits while holding
	// some of it.
	Decoding *budget.Budget
	// Histories is for the parts of histories that are being read and replayed, and for
	// the states of inboxes. Nobody waits for a chain while holding some of it.
	Histories *budget.Budget
}

// NewBudgets makes budgets for envelopes of at most the configured length.
func NewBudgets(limits limit.Config) Budgets {
	longest := int64(limits.MaxEnvelopeBytes) * decodedTimes
	share := partBytes + longest + int64(limits.MaxRequestBytes)
	return Budgets{
		Decoding:  budget.New(max(decodingBytes, 2*share), share),
		Histories: budget.New(max(historiesBytes, 4*share), 2*share),
	}
}

// decode takes what an update takes while it is decoded and its signatures are verified.
func (b Budgets) decode(ctx context.Context, canonical []byte) (give func(), err error) {
	holder, bytes := b.Decoding.Holder(), 2*payload.Weight(canonical)
	if err := holder.Take(ctx, bytes); err != nil {
		return nil, noMemory(err)
	}
	return func() { holder.Give(bytes) }, nil
}

func noMemory(err error) error {
	if fault.KindOf(err) == fault.Cancelled {
		return fault.Of(err)
	}
	return fault.Wrap(fault.Unavailable, err, "the publisher has no memory left to validate an identity update now")
}

// replay calls then with the state of an inbox. A stored history that does not apply is
// our fault, not the client's. Only one part of it is in memory at a time.
func (v *Validator) replay(ctx context.Context, inbox topic.Topic, outline []store.HistoryEntry, then func(*association.State) error) error {
	r := association.NewReplayer()
	part, state := v.Budgets.Histories.Holder(), v.Budgets.Histories.Holder()
	charged := int64(0)
	defer func() { state.Give(charged) }()
	above := topic.SequenceID(0)
	for len(outline) > 0 {
		n, bytes := firstPart(outline)
		if err := part.Take(ctx, bytes); err != nil {
			return noMemory(err)
		}
		err := v.replayPart(ctx, inbox, above, outline[:n], r)
		part.Give(bytes)
		if err != nil {
			return err
		}
		above, outline = outline[n-1].SequenceID, outline[n:]
		state.Give(charged)
		charged = 2 * r.Bytes() // once more when the update is applied
		state.Charge(charged)
	}
	return then(r.State())
}

// firstPart is how many entries are read together, and what they take at most.
func firstPart(outline []store.HistoryEntry) (n int, bytes int64) {
	content, longest := 0, 0
	for n < len(outline) && (n == 0 || content+outline[n].Bytes <= partBytes) {
		content += outline[n].Bytes
		longest = max(longest, outline[n].Bytes)
		n++
	}
	return n, int64(content + longest*decodedTimes)
}

// replayPart replays the entries of an outline.
func (v *Validator) replayPart(ctx context.Context, inbox topic.Topic, above topic.SequenceID, part []store.HistoryEntry, r *association.Replayer) error {
	entries, err := v.Histories.History(ctx, inbox, above, part[len(part)-1].SequenceID)
	if err != nil {
		return err
	}
	if len(entries) != len(part) {
		return otherHistory()
	}
	for i := range entries {
		if entries[i].SequenceID != part[i].SequenceID || entries[i].Hash != part[i].Hash {
			return otherHistory()
		}
		update, err := payload.DecodeIdentityUpdate(entries[i].Payload)
		if err != nil {
			return err
		}
		entries[i].Payload = nil
		if err := r.Next(ctx, update); err != nil {
			return err
		}
	}
	return nil
}

// otherHistory is for a database that is another than the one that gave the outline.
func otherHistory() error {
	return fault.Errorf(fault.Unavailable, "the history of the inbox is another than a moment ago, after a failover")
}
