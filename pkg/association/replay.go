package association

import (
	"context"
	"errors"

	"github.com/xmtp-selfhosted/backend/pkg/caip"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// Replay returns the state after an inbox's whole stored history, in the order
// of its sequence ids. No history is the state of an inbox that does not exist.
//
// Every stored update was verified when it was accepted, by the rules of that
// time, which allowed more than today's: it is taken as it is. So nothing is
// verified again and no chain is asked; only the signers of ECDSA signatures are
// recovered anew. History that never applied under any rules is Broken.
func Replay(history []*associations.IdentityUpdate) (*State, error) {
	r := NewReplayer()
	for _, update := range history {
		if err := r.Next(context.Background(), update); err != nil {
			return nil, err
		}
	}
	return r.State(), nil
}

// Replayer is Replay of updates that are read one after the other, as each may be
// long.
type Replayer struct {
	state *State
	count int
}

// NewReplayer begins with an inbox that does not exist.
func NewReplayer() *Replayer {
	r := &Replayer{state: &State{}}
	r.state.init()
	return r
}

// Next takes the next update. It stops with Cancelled or Late once ctx is done. After
// an error the replayer is worthless.
func (r *Replayer) Next(ctx context.Context, wire *associations.IdentityUpdate) error {
	r.count++
	verified, err := trust(ctx, wire)
	if err == nil {
		err = r.state.apply(verified)
	}
	if ctx.Err() != nil {
		return fault.Of(ctx.Err())
	}
	if err != nil {
		return fault.Wrap(fault.Broken, err, "stored update %d of an inbox does not apply", r.count)
	}
	return nil
}

// State is the state after the updates so far. It is for who takes no further one.
func (r *Replayer) State() *State { return r.state }

// Bytes is about how many bytes the state takes.
func (r *Replayer) Bytes() int64 { return r.state.bytes() }

// trust prepares a stored update and takes its signatures as good.
func trust(ctx context.Context, wire *associations.IdentityUpdate) (Verified, error) {
	p := preparation{stored: true}
	update, err := p.run(wire)
	if err != nil {
		return Verified{}, err
	}
	v := update.unproven()
	v.stored = true
	d := digests{update: update}
	for i := range update.signatures {
		if known := update.findSame(i); known >= 0 {
			v.proofs[i] = v.proofs[known]
			continue
		}
		if err := ctx.Err(); err != nil {
			return Verified{}, err
		}
		if v.proofs[i], err = update.signatures[i].deriveStored(&d); err != nil {
			return Verified{}, update.signatures[i].invalid(err)
		}
	}
	return v, nil
}

// deriveStored is derive for a signature that was accepted by older rules. What
// those left open is settled when the action is applied.
func (s *signature) deriveStored(d *digests) (proof, error) {
	switch kind := s.wire.(type) {
	case *associations.Signature_Erc_191:
		return recoverStored(d.ethereumHash(), kind.Erc_191.GetBytes())
	case *associations.Signature_Erc_6492:
		account, err := caip.ParseAccount(kind.Erc_6492.GetAccountId())
		if err != nil {
			return proof{}, err
		}
		number, isNumber := account.EIP155()
		address, isAddress := account.EthereumAddress()
		if !isNumber || !isAddress {
			return proof{}, errors.New("names no address on an eip155 chain")
		}
		return contractProof(number, address, kind.Erc_6492), nil
	case *associations.Signature_DelegatedErc_191:
		return proof{legacy: true}, nil
	default:
		return s.derive(d)
	}
}

// recoverStored recovers the signer by today's rules, or by the older ones: v could
// also be 35 and above, and was left alone when a high s was lowered, so that such
// a signature has either of two signers.
func recoverStored(hash *[32]byte, rsv []byte) (proof, error) {
	if len(rsv) == recoverableLength && rsv[vAt] >= 35 {
		lowered, _ := lower(rsv)
		lowered[vAt] = (rsv[vAt] - 35) % 2
		address, err := lowered.recover(hash)
		return proof{signer: ethereum(address), used: string(lowered[:])}, err
	}
	canonical, err := canonicalV0V1V27V28(rsv)
	if err != nil {
		return proof{}, err
	}
	address, err := canonical.recover(hash)
	if err != nil {
		return proof{}, err
	}
	p := proof{signer: ethereum(address), used: string(canonical[:])}
	if _, wasHigh := lower(rsv); wasHigh {
		canonical[vAt] ^= 1
		if address, err = canonical.recover(hash); err == nil {
			p.otherwise = &proof{signer: ethereum(address), used: string(canonical[:])}
		}
	}
	return p, nil
}

// settle says whose the signatures of a stored action are, where the signature
// alone does not tell: it is known to have been accepted.
//
// The code that verified legacy delegated signatures is gone. It is not needed: such
// a signature created the inbox, was the one of the new member that its action names,
// or was by an existing member whose inbox of nonce 0 this is, hence its creator. It
// could not revoke, nor change the recovery identifier. Its bytes need not be kept as
// used: no signature of today's kinds can consist of them.
func (s *State) settle(a *action, proofs []proof) {
	for i, role := range rolesOf[a.kind] {
		p := &proofs[i]
		switch {
		case p.legacy && (role == initialIdentifier || role == newMember):
			p.signer = a.identifier
		case p.legacy && role == existingMember:
			p.signer = s.creator
		case p.otherwise != nil && !s.fits(role, a, p.signer) && s.fits(role, a, p.otherwise.signer):
			*p = *p.otherwise
		}
	}
}

// fits says that a signer is one whom the role of its signature asks for.
func (s *State) fits(role role, a *action, signer Identifier) bool {
	switch role {
	case existingMember:
		return s.IsMember(signer) || signer == s.recovery
	case recoveryIdentifier:
		return signer == s.recovery
	default:
		return signer == a.identifier
	}
}
