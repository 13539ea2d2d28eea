package association

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// maxConcurrentCalls is how many contract-wallet signatures of one update are
// with the verifier at a time.
const maxConcurrentCalls = 8

// ContractVerifier answers whether a contract wallet accepts a signature
// (ERC-1271, ERC-6492). It must be safe for concurrent use.
type ContractVerifier interface {
	// VerifyContract returns true or false only as a definite verdict. An error
	// of kind Invalid means that no chain could ever accept the signature, such
	// as for a malformed address; any other error says that there is no verdict,
	// and is never taken for one.
	VerifyContract(ctx context.Context, signature ContractSignature) (bool, error)
}

// ContractSignature is what a contract wallet is asked about. Nothing in it is
// normalized.
type ContractSignature struct {
	// AccountID is well-formed CAIP-10, of any namespace.
	AccountID string
	// BlockNumber is the block whose state decides, 0 included.
	BlockNumber uint64
	// Hash is the EIP-191 digest of the signature text.
	Hash      [32]byte
	Signature []byte
}

// Verified is an update whose signatures are all good. Only Verify makes one
// that State.Apply takes. It holds nothing of the message.
type Verified struct {
	inboxID string
	actions []action
	proofs  []proof // as the update's signatures
	// stored says that older rules may have accepted the update.
	stored bool
}

// Signers lists who made the signatures, in wire order.
func (v Verified) Signers() []Identifier {
	signers := make([]Identifier, len(v.proofs))
	for i := range v.proofs {
		signers[i] = v.proofs[i].signer
	}
	return signers
}

// unproven has all of the update but the proofs.
func (u *Update) unproven() Verified {
	return Verified{inboxID: u.inboxID, actions: u.actions, proofs: make([]proof, len(u.signatures))}
}

// Verify verifies every signature of the update: those that need no chain
// first, then the contract wallets. A bad signature is Invalid with reason
// InvalidSignature, and is reported even if a verdict on another is not to be
// had; a missing verdict alone is the verifier's error, Unavailable as a rule.
// Context errors are Cancelled and Late.
//
// An ECDSA signature over another text, or by another key, is good here: it
// proves some other signer, which Apply refuses.
func (u *Update) Verify(ctx context.Context, verifier ContractVerifier) (Verified, error) {
	local, err := u.VerifyLocal(ctx)
	if err != nil {
		return Verified{}, err
	}
	if err := local.AskChains(ctx, verifier); err != nil {
		return Verified{}, err
	}
	return local.Answered(), nil
}

// Local is an update whose signatures are good as far as can be told without a
// chain. It holds of the message only what a chain is to be asked.
type Local struct {
	verified Verified
	hash     [32]byte
	// contracts are the distinct contract-wallet signatures.
	contracts []*signature
}

// NeedsChain says that contract wallets signed the update.
func (l Local) NeedsChain() bool { return len(l.contracts) > 0 }

// VerifyLocal is the first part of Verify.
func (u *Update) VerifyLocal(ctx context.Context) (Local, error) {
	l := Local{verified: u.unproven()}
	d := digests{update: u}
	for i := range u.signatures {
		s := &u.signatures[i]
		if err := ctx.Err(); err != nil {
			return Local{}, fault.Of(err)
		}
		if known := u.findSame(i); known >= 0 {
			l.verified.proofs[i] = l.verified.proofs[known]
			continue
		}
		var err error
		if l.verified.proofs[i], err = s.derive(&d); err == nil {
			err = s.check(&d)
		}
		if err != nil {
			return Local{}, s.invalid(err)
		}
		if _, ok := s.contract(); ok && !containsSame(l.contracts, s) {
			alone := *s // or it would keep all others
			l.contracts = append(l.contracts, &alone)
		}
	}
	if l.NeedsChain() {
		l.hash = *d.ethereumHash()
	}
	return l, nil
}

// AskChains is the second part of Verify.
func (l Local) AskChains(ctx context.Context, verifier ContractVerifier) error {
	if !l.NeedsChain() {
		return nil
	}
	return l.verifyContracts(ctx, verifier)
}

// Answered is the update if AskChains returned no error, or there was none to ask.
func (l Local) Answered() Verified { return l.verified }

// reuseWindow is how many earlier signatures findSame looks at. Clients sign an
// update once and put the signature into neighbouring actions.
const reuseWindow = 4

// findSame returns the index of an equal signature shortly before the one at
// index i, or -1.
func (u *Update) findSame(i int) int {
	for j := i - 1; j >= 0 && j >= i-reuseWindow; j-- {
		if u.signatures[i].same(&u.signatures[j]) {
			return j
		}
	}
	return -1
}

// verifyContracts asks for each distinct contract-wallet signature once.
func (l Local) verifyContracts(ctx context.Context, verifier ContractVerifier) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make([]error, len(l.contracts))
	var calls errgroup.Group
	calls.SetLimit(maxConcurrentCalls)
	for i, s := range l.contracts {
		calls.Go(func() error {
			if failures[i] = s.ask(ctx, verifier, l.hash); isVerdict(failures[i]) {
				cancel() // no other answer can change the result
			}
			return nil
		})
	}
	_ = calls.Wait() // the calls report in failures
	var unanswered error
	for _, err := range failures {
		switch {
		case err == nil:
		case isVerdict(err):
			return err
		case unanswered == nil || isContextError(unanswered):
			unanswered = err
		}
	}
	return unanswered
}

// ask returns nil if the chain accepts the signature, a verdict if it does not,
// and any other failure if there is no answer.
func (s *signature) ask(ctx context.Context, verifier ContractVerifier, hash [32]byte) error {
	if err := ctx.Err(); err != nil {
		return fault.Of(err)
	}
	if verifier == nil {
		return fault.Errorf(fault.Unavailable, "no chain is configured to verify contract-wallet signatures on")
	}
	wire, _ := s.contract()
	valid, err := verifier.VerifyContract(ctx, ContractSignature{
		AccountID:   wire.GetAccountId(),
		BlockNumber: wire.GetBlockNumber(),
		Hash:        hash,
		Signature:   wire.GetSignature(),
	})
	switch failure := fault.Of(err); {
	case failure != nil && failure.Kind == fault.Invalid:
		return s.invalid(errors.New("is refused: " + failure.Text()))
	case failure != nil:
		return failure
	case !valid:
		return s.invalid(errors.New("is not accepted by the contract wallet it names"))
	default:
		return nil
	}
}

func isVerdict(err error) bool { return err != nil && fault.KindOf(err) == fault.Invalid }

func isContextError(err error) bool {
	kind := fault.KindOf(err)
	return kind == fault.Cancelled || kind == fault.Late
}

func containsSame(list []*signature, s *signature) bool {
	for _, other := range list {
		if s.same(other) {
			return true
		}
	}
	return false
}
