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
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

// What an identity update and the log of an inbox may have. Of what an update has,
// some is free text that nobody signs, and each further update of the inbox has to
// read all of it. The longest update that clients can make today, of a hundred
// signatures of contract wallets, has half of MaxUpdateBytes. Past MaxLogBytes only
// updates of at most OwnersBytes are taken, so that an owner can still revoke.
const (
	MaxUpdateBytes = 256 << 10
	MaxLogBytes    = 16 << 20
	OwnersBytes    = 8 << 10
)

// Histories gives the log of an inbox.
type Histories interface {
	HistoryOutline(ctx context.Context, inbox topic.Topic) ([]store.HistoryEntry, error)
	History(ctx context.Context, inbox topic.Topic, above, through topic.SequenceID) ([]store.HistoryEntry, error)
}

// Deps are what a validator is given.
type Deps struct {
	Histories Histories
	Contracts association.ContractVerifier
	// Clock is for the lifetime of key packages.
	Clock  func() time.Time
	Limits limit.Config
	// ChainTimeout bounds what one request waits for chains in all.
	ChainTimeout time.Duration
	Budgets      Budgets
}

// Validator validates requests. It may be used concurrently.
type Validator struct{ Deps }

// New returns a validator.
func New(deps Deps) *Validator { return &Validator{deps} }

// Validate sets the Failure or the Update of each envelope that needs
// validation. An error is about the work itself: the database is away, the time
// is up.
func (v *Validator) Validate(ctx context.Context, r *request.Request) error {
	chains := patience{v.ChainTimeout}
	for i := range r.Envelopes {
		e := &r.Envelopes[i]
		switch e.Topic.Kind() {
		case topic.KeyPackage:
			e.Failure = fault.Of(e.KeyPackage.Validate(v.Clock()))
		case topic.IdentityUpdate:
			if err := v.update(ctx, e, &chains); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *Validator) update(ctx context.Context, e *request.Envelope, chains *patience) error {
	outline, err := v.Histories.HistoryOutline(ctx, e.Topic)
	if err != nil || isStored(outline, e.Hash) {
		return err
	}
	e.Update = &request.Update{Version: versionOf(outline)}
	return hold(e, v.apply(ctx, e, outline, chains))
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
// API-148) and finds what it changes. While chains are asked, which may be slow,
// nothing is held that others wait for, and nothing of the update but what they are
// asked; what the inbox has become meanwhile counts.
func (v *Validator) apply(ctx context.Context, e *request.Envelope, outline []store.HistoryEntry, chains *patience) error {
	if err := v.checkRoom(e, outline); err != nil {
		return err
	}
	local, err := v.verifyLocal(ctx, e)
	if err != nil {
		return err
	}
	if local.NeedsChain() {
		if err := v.ask(ctx, local, chains); err != nil {
			return err
		}
		if outline, err = v.Histories.HistoryOutline(ctx, e.Topic); err != nil {
			return err
		}
		if isStored(outline, e.Hash) {
			e.Update = nil
			return nil
		}
		e.Update.Version = versionOf(outline)
		if err := v.checkRoom(e, outline); err != nil {
			return err
		}
	}
	return v.replay(ctx, e.Topic, outline, func(before *association.State) error {
		after, err := before.Apply(local.Answered())
		if err != nil {
			return err
		}
		added, removed := association.Changes(before, after)
		e.Update.Added, e.Update.Removed = lookups(e.Topic, added), lookups(e.Topic, removed)
		return nil
	})
}

// checkRoom holds the caps on an update and on the log of an inbox (API-148).
func (v *Validator) checkRoom(e *request.Envelope, outline []store.HistoryEntry) error {
	if len(outline) >= int(v.Limits.MaxIdentityEntries) {
		return fault.Invalidf(fault.InvalidIdentityUpdate,
			"the inbox already has %d identity updates, expected fewer than %d", len(outline), v.Limits.MaxIdentityEntries)
	}
	its := len(e.Canonical)
	if its > MaxUpdateBytes {
		return fault.Invalidf(fault.TooLarge, "the identity update has %d bytes, expected at most %d", its, MaxUpdateBytes)
	}
	all := its
	for i := range outline {
		all += outline[i].Bytes
	}
	if all > MaxLogBytes && its > OwnersBytes {
		return fault.Invalidf(fault.TooLarge, "the identity update has %d bytes, expected at most %d, as the updates of the inbox have %d already",
			its, OwnersBytes, all-its)
	}
	return nil
}

// verifyLocal verifies what needs no chain.
func (v *Validator) verifyLocal(ctx context.Context, e *request.Envelope) (association.Local, error) {
	give, err := v.Budgets.decode(ctx, e.Canonical)
	if err != nil {
		return association.Local{}, err
	}
	defer give()
	update, err := e.IdentityUpdate()
	if err != nil {
		return association.Local{}, err
	}
	prepared, err := association.Prepare(update, association.MaxContractSignatures(int(v.Limits.MaxSCWSignatures)))
	if err != nil {
		return association.Local{}, err
	}
	return prepared.VerifyLocal(ctx)
}

// patience is what is left of the time that a request may wait for chains.
type patience struct{ left time.Duration }

// ask asks the chains. That they let us wait for too long is a failure of theirs, not
// of the call's time limit, which has that time beside its own (I10).
func (v *Validator) ask(ctx context.Context, local association.Local, chains *patience) error {
	asking, cancel := context.WithTimeout(ctx, chains.left)
	defer cancel()
	begun := time.Now()
	err := local.AskChains(asking, v.Contracts)
	chains.left -= time.Since(begun)
	if err != nil && fault.KindOf(err) != fault.Invalid && asking.Err() != nil && ctx.Err() == nil {
		return fault.Wrap(fault.Unavailable, err, "the chains of the update's contract wallets did not answer within %s", v.ChainTimeout)
	}
	return err
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
