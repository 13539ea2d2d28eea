package associationtest

import (
	"context"
	"strconv"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// Builder collects the actions of an update and signs them together. Its
// methods return it, for chaining.
type Builder struct {
	update *associations.IdentityUpdate
	// sign fills in one signature each, once the text is known.
	sign []func(text string)
}

// NewUpdate begins an update of an inbox.
func NewUpdate(inboxID string, clientTimestampNS uint64) *Builder {
	return &Builder{update: &associations.IdentityUpdate{InboxId: inboxID, ClientTimestampNs: clientTimestampNS}}
}

// InboxID is the id of the inbox that the signer creates with the nonce.
func InboxID(creator Signer, nonce uint64) string {
	return association.InboxID(creator.Text(), nonce)
}

// Create adds the creation of the inbox.
func (b *Builder) Create(creator Signer, nonce uint64) *Builder {
	return b.CreateAs(creator, creator.Text(), creator.Kind(), nonce)
}

// CreateAs is Create with an initial identifier that need not be the signer's.
func (b *Builder) CreateAs(creator Signer, identifier string, kind associations.IdentifierKind, nonce uint64) *Builder {
	create := &associations.CreateInbox{InitialIdentifier: identifier, InitialIdentifierKind: kind, Nonce: nonce}
	b.signBy(creator, &create.InitialIdentifierSignature)
	return b.append(&associations.IdentityAction{Kind: &associations.IdentityAction_CreateInbox{CreateInbox: create}})
}

// Add adds a member, signed by it and an existing one.
func (b *Builder) Add(existing, added Signer) *Builder {
	return b.AddAs(existing, added, added.Member())
}

// AddAs is Add with a member identifier that need not be the signer's.
func (b *Builder) AddAs(existing, added Signer, member *associations.MemberIdentifier) *Builder {
	add := &associations.AddAssociation{NewMemberIdentifier: member}
	b.signBy(existing, &add.ExistingMemberSignature)
	b.signBy(added, &add.NewMemberSignature)
	return b.append(&associations.IdentityAction{Kind: &associations.IdentityAction_Add{Add: add}})
}

// Revoke revokes a member, signed by the recovery identifier.
func (b *Builder) Revoke(recovery Signer, member *associations.MemberIdentifier) *Builder {
	revoke := &associations.RevokeAssociation{MemberToRevoke: member}
	b.signBy(recovery, &revoke.RecoveryIdentifierSignature)
	return b.append(&associations.IdentityAction{Kind: &associations.IdentityAction_Revoke{Revoke: revoke}})
}

// ChangeRecovery makes another identifier the recovery identifier.
func (b *Builder) ChangeRecovery(recovery Signer, identifier string, kind associations.IdentifierKind) *Builder {
	change := &associations.ChangeRecoveryAddress{NewRecoveryIdentifier: identifier, NewRecoveryIdentifierKind: kind}
	b.signBy(recovery, &change.ExistingRecoveryIdentifierSignature)
	return b.append(&associations.IdentityAction{Kind: &associations.IdentityAction_ChangeRecoveryAddress{ChangeRecoveryAddress: change}})
}

func (b *Builder) append(action *associations.IdentityAction) *Builder {
	b.update.Actions = append(b.update.Actions, action)
	return b
}

func (b *Builder) signBy(signer Signer, into **associations.Signature) {
	b.sign = append(b.sign, func(text string) { *into = signer.Sign(text) })
}

// Text is what the signatures of the update sign so far.
func (b *Builder) Text() string { return must(association.SignatureText(b.update)) }

// Update signs the actions and returns the update. Each call signs anew, into
// the same update.
func (b *Builder) Update() *associations.IdentityUpdate {
	text := b.Text()
	for _, sign := range b.sign {
		sign(text)
	}
	return b.update
}

// Register returns the usual first update of an inbox: the creator creates it
// and adds an installation.
func Register(creator Signer, nonce uint64, installation *Installation, clientTimestampNS uint64) *associations.IdentityUpdate {
	return NewUpdate(InboxID(creator, nonce), clientTimestampNS).
		Create(creator, nonce).
		Add(creator, installation).
		Update()
}

// History returns a history of n updates that applies: a wallet creates an
// inbox with an installation, then adds and revokes others in turn.
func History(seed string, n int) []*associations.IdentityUpdate {
	wallet := NewWallet(seed)
	history := make([]*associations.IdentityUpdate, 0, n)
	for i := range n {
		at := uint64(i) * 1_000_000_000
		installation := NewInstallation(seed + strconv.Itoa(i))
		update := NewUpdate(InboxID(wallet, 0), at)
		switch {
		case i == 0:
			update.Create(wallet, 0).Add(wallet, installation)
		case i%4 == 3:
			update.Revoke(wallet, NewInstallation(seed+strconv.Itoa(i-1)).Member())
		default:
			update.Add(wallet, installation)
		}
		history = append(history, update.Update())
	}
	return history
}

// VerifierFunc answers for contract wallets with a function.
type VerifierFunc func(ctx context.Context, signature association.ContractSignature) (bool, error)

// VerifyContract calls f.
func (f VerifierFunc) VerifyContract(ctx context.Context, signature association.ContractSignature) (bool, error) {
	return f(ctx, signature)
}

// AcceptAll accepts every contract-wallet signature.
type AcceptAll struct{}

// VerifyContract says yes.
func (AcceptAll) VerifyContract(context.Context, association.ContractSignature) (bool, error) {
	return true, nil
}
