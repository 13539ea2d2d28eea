package association

import (
	"context"
	"iter"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// Replay returns the state after an inbox's whole stored history, in the order
// of its sequence ids. No history is the state of an inbox that does not exist.
//
// Every stored update was verified when it was accepted, so nothing is verified
// again and no chain is asked; only the signers of ECDSA signatures are
// recovered anew. History that does not apply is Broken.
func Replay(history []*associations.IdentityUpdate) (*State, error) {
	return ReplayEach(context.Background(), func(yield func(*associations.IdentityUpdate, error) bool) {
		for _, update := range history {
			if !yield(update, nil) {
				return
			}
		}
	})
}

// ReplayEach is Replay of updates that are read one after the other, as each may be
// long. It stops with Cancelled or Late once ctx is done; an update that cannot be
// read is Broken like one that does not apply.
func ReplayEach(ctx context.Context, history iter.Seq2[*associations.IdentityUpdate, error]) (*State, error) {
	state := &State{}
	state.init()
	i := 0
	for wire, err := range history {
		i++
		var verified Verified
		if err == nil {
			verified, err = trust(ctx, wire)
		}
		if err == nil {
			err = state.apply(verified)
		}
		if ctx.Err() != nil {
			return nil, fault.Of(ctx.Err())
		}
		if err != nil {
			return nil, fault.Wrap(fault.Broken, err, "stored update %d of an inbox does not apply", i)
		}
	}
	return state, nil
}

// trust prepares a stored update and takes its signatures as good.
func trust(ctx context.Context, wire *associations.IdentityUpdate) (Verified, error) {
	p := preparation{stored: true}
	update, err := p.run(wire)
	if err != nil {
		return Verified{}, err
	}
	v := Verified{update: update, proofs: make([]proof, len(update.signatures))}
	d := digests{update: update}
	for i := range update.signatures {
		if known := update.findSame(i); known >= 0 {
			v.proofs[i] = v.proofs[known]
			continue
		}
		if err := ctx.Err(); err != nil {
			return Verified{}, err
		}
		if v.proofs[i], err = update.signatures[i].derive(&d); err != nil {
			return Verified{}, update.signatures[i].invalid(err)
		}
	}
	return v, nil
}
