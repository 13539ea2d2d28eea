// Package wallet verifies signatures of contract wallets by asking a chain:
// ERC-1271 for deployed ones, ERC-6492 for those still to be deployed, and the
// signatures of plain keys where an account has no code. It is the only package
// that knows go-ethereum.
//
// A verdict and the failure to get one are different results that cannot be
// mistaken for each other (invariant I10): a verdict comes without an error, and
// whatever goes wrong between here and the chain is an error of kind
// fault.Unavailable. A verdict is the one byte that the validator program returns:
// 01 valid, 00 invalid, and, for a signature that is not wrapped, 02, after which the
// signature is checked here as that of a plain key. Any other answer, none and a
// revert among them, cannot be the program's and is a failure of the provider. Neither errors nor anything else here repeat an endpoint,
// an account or a signature.
package wallet

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/xmtp-selfhosted/backend/pkg/caip"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// The results that OnResult hears of.
const (
	ResultValid   = "valid"
	ResultInvalid = "invalid"
	ResultError   = "error"
)

// Request is one signature to verify.
type Request struct {
	// AccountID is the signer in the form of CAIP-10.
	AccountID string
	// BlockNumber is the block whose state decides; nil is the newest. Only
	// verdicts at an explicit block are remembered.
	BlockNumber *uint64
	Hash        [32]byte
	// Signature is what the account is asked about, or an ERC-6492 wrapper.
	Signature []byte
}

// Verdict is a definite result.
type Verdict struct {
	Valid bool
	// BlockNumber is the block at which the verdict holds.
	BlockNumber uint64
	// AtBlock is false, and BlockNumber 0, for a signature that is invalid
	// whatever the chain says, when the request names no block.
	AtBlock bool
}

// Verifier verifies signatures over the JSON-RPC endpoints of its chains. It may
// be used concurrently.
type Verifier struct {
	// OnResult, if set, is called once for each verification with one of the
	// Result values: ResultError counts failures of a chain and chains without
	// a verifier, not malformed requests and callers that went away. Set it
	// before the first verification.
	OnResult func(result string)

	chains      map[string]*chain
	ids         []string
	cache       *cache
	transport   *http.Transport
	maxBlockAge time.Duration
}

// New returns a verifier. It opens no connection, so an endpoint that is down
// costs nothing until it is asked, and works as soon as it is back. Close frees
// the idle connections.
func New(cfg Config) (*Verifier, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	verdicts, err := newCache(cfg.CacheEntries)
	if err != nil {
		return nil, err
	}
	v := &Verifier{
		chains:      make(map[string]*chain, len(cfg.Chains)),
		ids:         cfg.Chains.IDs(),
		cache:       verdicts,
		transport:   http.DefaultTransport.(*http.Transport).Clone(),
		maxBlockAge: cfg.MaxBlockAge,
	}
	v.transport.MaxIdleConns = 0 // only the bound per host
	v.transport.MaxIdleConnsPerHost = cfg.MaxCalls
	for id, endpoint := range cfg.Chains {
		v.chains[id], err = newChain(id, endpoint, cfg.Timeout, cfg.MaxCalls, v.transport)
		if err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Close closes the idle connections. Verifications under way end on their own.
func (v *Verifier) Close() { v.transport.CloseIdleConnections() }

// Verify finds out whether the account signed the hash (API-123). Without an
// error the verdict is definite. An error is of kind Invalid for an account id
// that is not CAIP-10, Cancelled or Late when ctx ended, and otherwise
// Unavailable: no verifier for the chain, or no usable answer from it.
func (v *Verifier) Verify(ctx context.Context, request Request) (Verdict, error) {
	account, err := caip.ParseAccount(request.AccountID)
	if err != nil {
		return Verdict{}, err
	}
	verdict, err := v.verify(ctx, account, request)
	v.report(verdict, err)
	return verdict, err
}

func (v *Verifier) report(verdict Verdict, err error) {
	switch {
	case v.OnResult == nil:
	case err != nil:
		if failure := fault.Of(err); failure.Kind == fault.Unavailable && !failure.ByCaller {
			v.OnResult(ResultError)
		}
	case verdict.Valid:
		v.OnResult(ResultValid)
	default:
		v.OnResult(ResultInvalid)
	}
}

// VerifyAdmitted is VerifyAt for a signature of an update that is to be stored: its
// block has to be recent as well (IDENT-062), or anybody who once was an owner of a
// contract could sign at a block of that time. A block that is not is of kind Invalid.
func (v *Verifier) VerifyAdmitted(ctx context.Context, accountID string, block uint64, hash [32]byte, signature []byte) (bool, error) {
	if v.maxBlockAge > 0 {
		if err := v.checkAge(ctx, accountID, block); err != nil {
			return false, err
		}
	}
	return v.VerifyAt(ctx, accountID, block, hash, signature)
}

func (v *Verifier) checkAge(ctx context.Context, accountID string, block uint64) error {
	account, err := caip.ParseAccount(accountID)
	if err != nil {
		return err
	}
	c, configured := v.chains[account.ChainID]
	if !configured {
		return nil // VerifyAt says so
	}
	err = c.checkAge(ctx, block, v.maxBlockAge)
	if err != nil {
		v.report(Verdict{}, err)
	}
	return err
}

// VerifyAt is Verify for callers that always name the block, as the signatures
// of identity updates do.
func (v *Verifier) VerifyAt(ctx context.Context, accountID string, block uint64, hash [32]byte, signature []byte) (bool, error) {
	verdict, err := v.Verify(ctx, Request{AccountID: accountID, BlockNumber: &block, Hash: hash, Signature: signature})
	return verdict.Valid, err
}

func (v *Verifier) verify(ctx context.Context, account caip.Account, request Request) (Verdict, error) {
	c, configured := v.chains[account.ChainID]
	if !configured {
		return Verdict{}, v.noVerifier()
	}
	invalid := Verdict{}
	if request.BlockNumber != nil {
		invalid = Verdict{BlockNumber: *request.BlockNumber, AtBlock: true}
	}
	digits, isAddress := account.EthereumAddress()
	if !isAddress || len(request.Signature) < minSignatureBytes {
		return invalid, nil
	}
	deploy, inner, ok := unwrap(request.Signature)
	if !ok {
		return invalid, nil
	}

	signer := common.HexToAddress(digits)
	ask := func() (Verdict, error) {
		answer, at, err := c.run(ctx, validatorInput(signer, deploy, request.Hash, inner), request.BlockNumber)
		if err != nil {
			return Verdict{}, err
		}
		verdict := Verdict{BlockNumber: at, AtBlock: true}
		switch {
		case isByte(answer, answerValid):
			verdict.Valid = true
		case isByte(answer, answerInvalid):
		case isByte(answer, answerNoCode) && deploy == nil:
			verdict.Valid = signedByKey(signer, request.Hash, inner)
		default: // as from a node without the state of the block
			return Verdict{}, c.unusable("gave an answer that the validator never gives")
		}
		return verdict, nil
	}
	if request.BlockNumber == nil {
		return ask()
	}
	q := questionOf(account.ChainID, signer, *request.BlockNumber, request.Hash, request.Signature)
	valid, err := v.cache.answer(ctx, q, func() (bool, error) {
		verdict, err := ask()
		return verdict.Valid, err
	})
	if err != nil {
		return Verdict{}, err
	}
	return Verdict{Valid: valid, BlockNumber: *request.BlockNumber, AtBlock: true}, nil
}

// noVerifier does not repeat the chain, which is the caller's text.
func (v *Verifier) noVerifier() error {
	if len(v.ids) == 0 {
		return fault.Errorf(fault.Unavailable, "the account is on a chain without a verifier, and none is configured").OfCaller()
	}
	return fault.Errorf(fault.Unavailable, "the account is on a chain without a verifier, expected one of %s", strings.Join(v.ids, ", ")).OfCaller()
}

func isByte(answer []byte, value byte) bool { return len(answer) == 1 && answer[0] == value }
