// Package validate checks what the structure of an envelope does not tell: key
// packages against the clock, identity updates against the history of their
// inbox and the chains. It runs without any lock and writes its findings into
// the request; whether they matter is decided under the locks (API-035, API-036).
package validate

import (
	"context"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/payload"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

// maxHistories is how many histories are in memory at a time. One can have as
// many bytes as an inbox can hold entries of the maximum size.
const maxHistories = 4

// Histories gives the whole log of an inbox from one snapshot.
type Histories interface {
	History(ctx context.Context, inbox topic.Topic) ([]store.HistoryEntry, error)
}

// Validator validates requests. It may be used concurrently.
type Validator struct {
	histories Histories
	contracts association.ContractVerifier
	clock     func() time.Time
	limits    limit.Config
	slots     chan struct{}
}

// New returns a validator. The clock is for the lifetime of key packages.
func New(histories Histories, contracts association.ContractVerifier, clock func() time.Time, limits limit.Config) *Validator {
	return &Validator{
		histories: histories, contracts: contracts, clock: clock, limits: limits,
		slots: make(chan struct{}, maxHistories),
	}
}

// Validate sets the Failure or the Update of each envelope that needs
// validation. An error is about the work itself: the database is away, the time
// is up.
func (v *Validator) Validate(ctx context.Context, r *request.Request) error {
	for i := range r.Envelopes {
		e := &r.Envelopes[i]
		switch e.Topic.Kind() {
		case topic.KeyPackage:
			e.Failure = fault.Of(e.KeyPackage.Validate(v.clock()))
		case topic.IdentityUpdate:
			if err := v.update(ctx, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *Validator) update(ctx context.Context, e *request.Envelope) error {
	select {
	case v.slots <- struct{}{}:
		defer func() { <-v.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	history, err := v.histories.History(ctx, e.Topic)
	if err != nil || isStored(history, e.Hash) {
		return err
	}
	e.Update = &request.Update{}
	if len(history) > 0 {
		e.Update.Version = history[len(history)-1].SequenceID
	}
	return hold(e, v.apply(ctx, e, history))
}

// hold keeps a verdict for the judge. Failures of our own are returned.
func hold(e *request.Envelope, err error) error {
	failure := fault.Of(err)
	if failure == nil {
		return nil
	}
	switch failure.Kind {
	case fault.Invalid, fault.Unavailable:
		e.Failure = failure
		return nil
	default:
		return failure
	}
}

func isStored(history []store.HistoryEntry, hash envelope.MessageHash) bool {
	for i := range history {
		if history[i].Hash == hash {
			return true
		}
	}
	return false
}

// apply validates an update against the history of its inbox (API-043, API-044,
// API-148) and finds what it changes.
func (v *Validator) apply(ctx context.Context, e *request.Envelope, history []store.HistoryEntry) error {
	if len(history) >= int(v.limits.MaxIdentityEntries) {
		return fault.Invalidf(fault.InvalidIdentityUpdate,
			"the inbox already has %d identity updates, expected fewer than %d", len(history), v.limits.MaxIdentityEntries)
	}
	update, err := e.IdentityUpdate()
	if err != nil {
		return err
	}
	prepared, err := association.Prepare(update, association.MaxContractSignatures(int(v.limits.MaxSCWSignatures)))
	if err != nil {
		return err
	}
	verified, err := prepared.Verify(ctx, v.contracts)
	if err != nil {
		return err
	}
	before, err := replay(ctx, history)
	if err != nil {
		return err
	}
	after, err := before.Apply(verified)
	if err != nil {
		return err
	}
	added, removed := association.Changes(before, after)
	e.Update.Added, e.Update.Removed = lookups(e.Topic, added), lookups(e.Topic, removed)
	return nil
}

// replay returns the state of an inbox. A stored history that does not apply is
// our fault, not the client's.
func replay(ctx context.Context, history []store.HistoryEntry) (*association.State, error) {
	updates := make([]*associations.IdentityUpdate, len(history))
	for i := range history {
		update, err := payload.DecodeIdentityUpdate(history[i].Payload)
		if err != nil {
			return nil, err
		}
		updates[i] = update
		history[i].Payload = nil
	}
	return association.ReplayContext(ctx, updates)
}

func lookups(inbox topic.Topic, identifiers []association.Identifier) []store.Association {
	var found []store.Association
	for _, identifier := range identifiers {
		if kind, key, ok := identifier.LookupKey(); ok {
			found = append(found, store.Association{Kind: int16(kind), Identifier: key, InboxID: inbox.Identifier()})
		}
	}
	return found
}
