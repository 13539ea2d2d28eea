// Package validate checks what the structure of an envelope does not tell: key
// packages against the clock, identity updates against the history of their
// inbox and the chains. It runs without any lock and writes its findings into
// the request; whether they matter is decided under the locks (API-035, API-036).
package validate

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

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

// maxHistoryBytes bounds the histories that are in memory at a time: as many bytes as
// one inbox can hold in 256 entries of 1 MiB. Most have some thousand.
const maxHistoryBytes = 256 << 20

// Histories gives the whole log of an inbox from one snapshot.
type Histories interface {
	History(ctx context.Context, inbox topic.Topic) ([]store.HistoryEntry, error)
	HistoryOutline(ctx context.Context, inbox topic.Topic) ([]store.HistoryEntry, error)
}

// Validator validates requests. It may be used concurrently.
type Validator struct {
	histories Histories
	contracts association.ContractVerifier
	clock     func() time.Time
	limits    limit.Config
	memory    *semaphore.Weighted
}

// New returns a validator. The clock is for the lifetime of key packages.
func New(histories Histories, contracts association.ContractVerifier, clock func() time.Time, limits limit.Config) *Validator {
	return &Validator{
		histories: histories, contracts: contracts, clock: clock, limits: limits,
		memory: semaphore.NewWeighted(maxHistoryBytes),
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
	outline, err := v.histories.HistoryOutline(ctx, e.Topic)
	if err != nil || isStored(outline, e.Hash) {
		return err
	}
	e.Update = &request.Update{Version: versionOf(outline)}
	return hold(e, v.apply(ctx, e, outline))
}

func versionOf(history []store.HistoryEntry) topic.SequenceID {
	if len(history) == 0 {
		return 0
	}
	return history[len(history)-1].SequenceID
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
// API-148) and finds what it changes. The history is read only once the chains have
// answered: while they are slow, no memory is taken that others wait for.
func (v *Validator) apply(ctx context.Context, e *request.Envelope, outline []store.HistoryEntry) error {
	if err := v.checkRoom(outline); err != nil {
		return err
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
	before, err := v.replay(ctx, e, outline)
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

// checkRoom holds the cap on the updates of an inbox (API-148).
func (v *Validator) checkRoom(history []store.HistoryEntry) error {
	if len(history) < int(v.limits.MaxIdentityEntries) {
		return nil
	}
	return fault.Invalidf(fault.InvalidIdentityUpdate,
		"the inbox already has %d identity updates, expected fewer than %d", len(history), v.limits.MaxIdentityEntries)
}

// replay returns the state of an inbox and sets the version that it is the state of.
// A stored history that does not apply is our fault, not the client's.
func (v *Validator) replay(ctx context.Context, e *request.Envelope, outline []store.HistoryEntry) (*association.State, error) {
	bytes := int64(0)
	for i := range outline {
		bytes += int64(outline[i].Bytes)
	}
	bytes = min(bytes, maxHistoryBytes)
	if err := v.memory.Acquire(ctx, bytes); err != nil {
		return nil, err
	}
	defer v.memory.Release(bytes)
	history := outline
	if len(outline) > 0 {
		var err error
		if history, err = v.histories.History(ctx, e.Topic); err != nil {
			return nil, err
		}
		if err = v.checkRoom(history); err != nil { // it may have grown
			return nil, err
		}
		e.Update.Version = versionOf(history)
	}
	return association.ReplayEach(ctx, func(yield func(*associations.IdentityUpdate, error) bool) {
		for i := range history {
			update, err := payload.DecodeIdentityUpdate(history[i].Payload)
			history[i].Payload = nil
			if !yield(update, err) {
				return
			}
		}
	})
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
