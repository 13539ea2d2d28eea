package association

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha512"
	"errors"

	"github.com/xmtp-selfhosted/backend/pkg/caip"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// role is the part that a signature plays in its action, for error texts.
type role uint8

const (
	initialIdentifier role = iota
	existingMember
	newMember
	recoveryIdentifier
)

func (r role) String() string {
	return [...]string{"initial identifier", "existing member", "new member", "recovery identifier"}[r]
}

// signature is one signature of an update, of a kind that Prepare knows.
type signature struct {
	action int
	role   role
	wire   signatureKind
}

// signatureKind is the oneof of associations.Signature, whose own type is not
// exported.
type signatureKind any

// proof is what a signature proves once it is known to be good.
type proof struct {
	signer Identifier
	// chain is the one that a contract wallet signed on.
	chain chainID
	// used is what the signature counts as: whatever has it may not serve again in a
	// later update.
	used string

	// Of a stored signature: legacy ones have no signer before they are settled, and
	// otherwise is what a signature proves by older rules, if that differs.
	legacy    bool
	otherwise *proof
}

// chainID is a chain number, or none: no number at all is different from 0.
type chainID struct {
	number uint64
	known  bool
}

// digests makes what the signature kinds sign out of the text of an update,
// each when it is first needed.
type digests struct {
	update *Update

	signedText   []byte
	ethereum     *[32]byte
	installation *[sha512.Size]byte
	challenge    string
}

func (d *digests) text() []byte {
	if d.signedText == nil {
		d.signedText = d.update.text()
	}
	return d.signedText
}

func (d *digests) ethereumHash() *[32]byte {
	if d.ethereum == nil {
		hash := hashPersonalMessage(d.text())
		d.ethereum = &hash
	}
	return d.ethereum
}

func (d *digests) installationHash() []byte {
	if d.installation == nil {
		hash := sha512.Sum512(d.text())
		d.installation = &hash
	}
	return d.installation[:]
}

func (d *digests) passkeyChallenge() string {
	if d.challenge == "" {
		d.challenge = challengeOf(d.text())
	}
	return d.challenge
}

// installationContext sets signatures of identity updates apart from others by
// the same key.
var installationContext = &ed25519.Options{Hash: crypto.SHA512, Context: "IDENTITY UPDATE SIGNATURE"}

var errUnknownKind = errors.New("is of no known kind")

// derive says who signed, as far as the signature itself tells. For ECDSA that
// needs the signed text, since the signer is recovered from it; the others name
// their signer, and only check, or the chain, proves it.
func (s *signature) derive(d *digests) (proof, error) {
	switch kind := s.wire.(type) {
	case *associations.Signature_Erc_191:
		address, used, err := recoverSignerV0V1V27V28(d.ethereumHash(), kind.Erc_191.GetBytes())
		return proof{signer: ethereum(address), used: used}, err
	case *associations.Signature_Erc_6492:
		number, address, err := caip.ParseEIP155(kind.Erc_6492.GetAccountId())
		if err != nil {
			return proof{}, errors.New("is refused: " + fault.Of(err).Text())
		}
		return contractProof(number, address, kind.Erc_6492), nil
	case *associations.Signature_InstallationKey:
		key := kind.InstallationKey
		return proof{signer: Identifier{Kind: Installation, Value: string(key.GetPublicKey())}, used: string(key.GetBytes())}, nil
	case *associations.Signature_Passkey:
		used, err := canonicalPasskeySignature(kind.Passkey.GetSignature())
		return proof{signer: Identifier{Kind: Passkey, Value: string(kind.Passkey.GetPublicKey())}, used: used}, err
	default:
		return proof{}, errUnknownKind
	}
}

// contractProof holds once the chain has accepted the signature. It counts as its
// bytes. Where they can be those of a plain key, for which a chain answers too, they
// count as in any other encoding, or a wallet's used signature could serve again in
// the guise of a contract's.
func contractProof(chain uint64, address string, wire *associations.SmartContractWalletSignature) proof {
	used := string(wire.GetSignature())
	if canonical, err := canonicalV0V1V27V28(wire.GetSignature()); err == nil {
		used = string(canonical[:])
	}
	return proof{signer: ethereum(address), chain: chainID{number: chain, known: true}, used: used}
}

// check proves what derive took from the signature on trust.
func (s *signature) check(d *digests) error {
	switch kind := s.wire.(type) {
	case *associations.Signature_Erc_191, *associations.Signature_Erc_6492:
		return nil // recovery is the proof, and the chain decides
	case *associations.Signature_InstallationKey:
		key := kind.InstallationKey
		// Prepare made sure of the key's length, without which this panics.
		if ed25519.VerifyWithOptions(key.GetPublicKey(), d.installationHash(), key.GetBytes(), installationContext) != nil {
			return errors.New("does not verify: expected Ed25519ph by the named installation over the text of the update")
		}
		return nil
	case *associations.Signature_Passkey:
		return checkPasskey(d.passkeyChallenge(), kind.Passkey)
	default:
		return errUnknownKind
	}
}

// invalid is the failure of this signature for the reason that err gives.
func (s *signature) invalid(err error) error {
	return fault.Invalidf(fault.InvalidSignature, "action %d: the %s signature %s", s.action, s.role, err)
}

// same says whether two signatures of one update are byte for byte the same, so
// that what is known of one holds for the other. Only kinds whose verification
// is dear and which clients repeat are compared.
func (s *signature) same(other *signature) bool {
	switch a := s.wire.(type) {
	case *associations.Signature_Erc_191:
		b, ok := other.wire.(*associations.Signature_Erc_191)
		return ok && string(a.Erc_191.GetBytes()) == string(b.Erc_191.GetBytes())
	case *associations.Signature_Erc_6492:
		b, ok := other.wire.(*associations.Signature_Erc_6492)
		return ok && a.Erc_6492.GetAccountId() == b.Erc_6492.GetAccountId() &&
			a.Erc_6492.GetBlockNumber() == b.Erc_6492.GetBlockNumber() &&
			string(a.Erc_6492.GetSignature()) == string(b.Erc_6492.GetSignature())
	default:
		return false
	}
}

func (s *signature) contract() (*associations.SmartContractWalletSignature, bool) {
	kind, ok := s.wire.(*associations.Signature_Erc_6492)
	if !ok {
		return nil, false
	}
	return kind.Erc_6492, true
}
