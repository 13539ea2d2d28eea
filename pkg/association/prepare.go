package association

import (
	"crypto/ed25519"
	"encoding/hex"

	"filippo.io/edwards25519"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// DefaultMaxContractSignatures is how many contract-wallet signatures an update
// may carry unless Prepare is told otherwise (API-044).
const DefaultMaxContractSignatures = 100

// Update is an identity update whose structure is sound. It refers to the
// message it was prepared from, which must not change while the Update is in
// use. It is safe for concurrent use.
type Update struct {
	inboxID     string
	timestampNS uint64
	actions     []action
	// signatures holds those of all actions in wire order; an action knows its
	// share by position.
	signatures []signature
}

type actionKind uint8

const (
	createInbox actionKind = iota
	addAssociation
	revokeAssociation
	changeRecovery
)

// rolesOf lists the signatures of each kind of action, in wire order.
var rolesOf = [...][]role{
	createInbox:       {initialIdentifier},
	addAssociation:    {existingMember, newMember},
	revokeAssociation: {recoveryIdentifier},
	changeRecovery:    {recoveryIdentifier},
}

type action struct {
	kind actionKind
	// identifier is what the action is about: the initial identifier, the new
	// member, the member to revoke or the new recovery identifier.
	identifier Identifier
	nonce      uint64 // createInbox
	signature  int    // index of its first signature; addAssociation has two
}

// Option changes how Prepare checks an update.
type Option func(*preparation)

// MaxContractSignatures sets how many contract-wallet signatures an update may
// carry.
func MaxContractSignatures(n int) Option {
	return func(p *preparation) { p.maxContracts = n }
}

// Prepare checks the structure of an update: every action, identifier and
// signature is there and has the form of its kind. No signature is verified.
//
// A failure is Invalid. Its reason is MalformedPayload for the inbox id,
// TooLarge for too many contract-wallet signatures, else InvalidIdentityUpdate.
func Prepare(update *associations.IdentityUpdate, options ...Option) (*Update, error) {
	p := preparation{maxContracts: DefaultMaxContractSignatures}
	for _, option := range options {
		option(&p)
	}
	return p.run(update)
}

// usualActions is room for the actions of all but extraordinary updates. More
// is made as they turn out to be well formed, so that a few bytes of nonsense
// cannot ask for much memory.
const usualActions = 16

type preparation struct {
	maxContracts int
	// stored says that the update was accepted before, by the rules of its time: its
	// contract signatures are not counted, its keys not decoded again, its spellings
	// left alone.
	stored bool

	update    *Update
	contracts int
}

func (p *preparation) run(update *associations.IdentityUpdate) (*Update, error) {
	if _, err := ParseInboxID(update.GetInboxId()); err != nil {
		return nil, err
	}
	actions := update.GetActions()
	if len(actions) == 0 && !p.stored {
		return nil, fault.Invalidf(fault.InvalidIdentityUpdate, "the update has no actions, expected at least one")
	}
	p.update = &Update{
		inboxID:     update.GetInboxId(),
		timestampNS: update.GetClientTimestampNs(),
		actions:     make([]action, 0, min(len(actions), usualActions)),
		signatures:  make([]signature, 0, 2*min(len(actions), usualActions)),
	}
	for i, wire := range actions {
		a, wireSignatures, err := readAction(i, wire)
		if err != nil {
			return nil, err
		}
		if !p.stored && !a.identifier.isCanonical() {
			return nil, structural(i, "has a bad Ethereum address, expected 0x and 40 lower-case hex digits")
		}
		a.signature = len(p.update.signatures)
		p.update.actions = append(p.update.actions, a)
		for n, role := range rolesOf[a.kind] {
			if err := p.signature(i, role, wireSignatures[n]); err != nil {
				return nil, err
			}
		}
	}
	return p.update, nil
}

// readAction reads an action and its signatures, which may be nil.
func readAction(index int, wire *associations.IdentityAction) (a action, s [2]*associations.Signature, err error) {
	switch kind := wire.GetKind().(type) {
	case *associations.IdentityAction_CreateInbox:
		create := kind.CreateInbox
		a.kind, a.nonce = createInbox, create.GetNonce()
		s[0] = create.GetInitialIdentifierSignature()
		a.identifier, err = textIdentifier(index, create.GetInitialIdentifierKind(), create.GetInitialIdentifier())
	case *associations.IdentityAction_Add:
		add := kind.Add
		a.kind = addAssociation
		s[0], s[1] = add.GetExistingMemberSignature(), add.GetNewMemberSignature()
		a.identifier, err = memberIdentifier(index, add.GetNewMemberIdentifier())
	case *associations.IdentityAction_Revoke:
		revoke := kind.Revoke
		a.kind = revokeAssociation
		s[0] = revoke.GetRecoveryIdentifierSignature()
		a.identifier, err = memberIdentifier(index, revoke.GetMemberToRevoke())
	case *associations.IdentityAction_ChangeRecoveryAddress:
		change := kind.ChangeRecoveryAddress
		a.kind = changeRecovery
		s[0] = change.GetExistingRecoveryIdentifierSignature()
		a.identifier, err = textIdentifier(index, change.GetNewRecoveryIdentifierKind(), change.GetNewRecoveryIdentifier())
	default:
		err = structural(index, "has no kind, expected one of create inbox, add, revoke and change recovery")
	}
	return a, s, err
}

// signature checks and keeps one signature of an action.
func (p *preparation) signature(index int, role role, wire *associations.Signature) error {
	s := signature{action: index, role: role, wire: wire.GetSignature()}
	switch kind := s.wire.(type) {
	case *associations.Signature_Erc_191, *associations.Signature_Passkey:
	case *associations.Signature_Erc_6492:
		p.contracts++
		if p.contracts > p.maxContracts && !p.stored {
			return fault.Invalidf(fault.TooLarge, "the update has more than %d contract-wallet signatures", p.maxContracts)
		}
	case *associations.Signature_InstallationKey:
		if !p.isEd25519Key(kind.InstallationKey.GetPublicKey()) {
			return structural(index, "has a bad "+role.String()+" signature: the public key is not an Ed25519 key of 32 bytes")
		}
	default:
		if _, legacy := kind.(*associations.Signature_DelegatedErc_191); !legacy || !p.stored {
			return structural(index, "has no "+role.String()+" signature of a known kind")
		}
	}
	p.update.signatures = append(p.update.signatures, s)
	return nil
}

func (p *preparation) isEd25519Key(key []byte) bool {
	if len(key) != ed25519.PublicKeySize {
		return false
	}
	if p.stored {
		return true
	}
	_, err := new(edwards25519.Point).SetBytes(key)
	return err == nil
}

// textIdentifier reads an identifier that travels as text. Every kind but
// passkey is Ethereum, as older clients do not set the kind.
func textIdentifier(index int, kind associations.IdentifierKind, text string) (Identifier, error) {
	if kind != associations.IdentifierKind_IDENTIFIER_KIND_PASSKEY {
		return Identifier{Kind: Ethereum, Value: text}, nil
	}
	key, err := hex.DecodeString(text)
	if err != nil {
		return Identifier{}, structural(index, "has a passkey identifier that is not hex")
	}
	return Identifier{Kind: Passkey, Value: string(key)}, nil
}

func memberIdentifier(index int, wire *associations.MemberIdentifier) (Identifier, error) {
	switch kind := wire.GetKind().(type) {
	case *associations.MemberIdentifier_EthereumAddress:
		return Identifier{Kind: Ethereum, Value: kind.EthereumAddress}, nil
	case *associations.MemberIdentifier_InstallationPublicKey:
		return Identifier{Kind: Installation, Value: string(kind.InstallationPublicKey)}, nil
	case *associations.MemberIdentifier_Passkey:
		return Identifier{Kind: Passkey, Value: string(kind.Passkey.GetKey())}, nil
	default:
		return Identifier{}, structural(index, "has no member identifier, expected an address, an installation key or a passkey")
	}
}

// structural is a failure in the form of one action.
func structural(index int, what string) error {
	return fault.Invalidf(fault.InvalidIdentityUpdate, "action %d %s", index, what)
}
