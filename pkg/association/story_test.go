package association_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

type updates = []*associations.IdentityUpdate

// identifier is what a signer is as a member.
func identifier(s kit.Signer) association.Identifier {
	switch member := s.Member().GetKind().(type) {
	case *associations.MemberIdentifier_InstallationPublicKey:
		return association.Identifier{Kind: association.Installation, Value: string(member.InstallationPublicKey)}
	case *associations.MemberIdentifier_Passkey:
		return association.Identifier{Kind: association.Passkey, Value: string(member.Passkey.GetKey())}
	default:
		return association.Identifier{Kind: association.Ethereum, Value: s.Text()}
	}
}

func identifiers(signers ...kit.Signer) []association.Identifier {
	list := make([]association.Identifier, 0, len(signers))
	for _, s := range signers {
		list = append(list, identifier(s))
	}
	return list
}

func clone(update *associations.IdentityUpdate) *associations.IdentityUpdate {
	return proto.CloneOf(update)
}

// Proves API-043, IDENT-013, IDENT-040.
func TestEdgeCasesOfState(t *testing.T) {
	tablet := kit.NewInstallation("tablet")
	carol := kit.NewWallet("carol")
	odd := signer{alice, withV(func(parity byte) byte { return parity }).Sign}
	members := func(signers ...kit.Signer) []kit.Signer { return signers }

	cases := map[string]struct {
		history updates
		update  *associations.IdentityUpdate
		want    fault.Reason
		members []kit.Signer // after, if accepted
	}{
		"60 create and add installation": {nil, kit.Register(alice, 0, phone, second), accepted, members(alice, phone)},
		"61 same actions at another nanosecond": {registered(), stamped(clone(registered()[0]), second+1),
			fault.InvalidIdentityUpdate, nil},
		"61 two creates in one update": {nil, inbox(alice, 1).Create(alice, 0).Create(alice, 0).Update(),
			fault.InvalidIdentityUpdate, nil},
		"62 first update without create": {nil, inbox(alice, 1).Add(alice, phone).Update(), fault.InvalidIdentityUpdate, nil},
		"62 first update revokes":        {nil, inbox(alice, 1).Revoke(alice, phone.Member()).Update(), fault.InvalidIdentityUpdate, nil},
		"62 create is not first": {nil, inbox(alice, 1).Add(alice, phone).Create(alice, 0).Update(),
			fault.InvalidIdentityUpdate, nil},
		"63 no actions, empty log":    {nil, inbox(alice, 1).Update(), fault.InvalidIdentityUpdate, nil},
		"63 no actions, existing log": {registered(), inbox(alice, 2).Update(), fault.InvalidIdentityUpdate, nil},
		"64 update of another inbox": {registered(), kit.NewUpdate(kit.InboxID(bob, 0), 2*second).Add(alice, laptop).Update(),
			fault.InvalidIdentityUpdate, nil},
		"74 installation adds installation": {registered(), inbox(alice, 2).Add(phone, laptop).Update(),
			fault.InvalidIdentityUpdate, nil},
		"75 installation adds wallet":  {registered(), inbox(alice, 2).Add(phone, bob).Update(), accepted, members(alice, phone, bob)},
		"75 installation adds passkey": {registered(), inbox(alice, 2).Add(phone, passkey).Update(), accepted, members(alice, phone, passkey)},
		"75 passkey adds installation": {updates{create(passkey)}, inbox(passkey, 2).Add(passkey, phone).Update(), accepted, members(passkey, phone)},
		"86 recovery identifier that is no member adds": {
			append(registered(), inbox(alice, 2).ChangeRecovery(alice, bob.Text(), eth).Update()),
			inbox(alice, 3).Add(bob, laptop).Update(), accepted, members(alice, phone, laptop)},
		"86 stranger adds":            {registered(), inbox(alice, 2).Add(bob, laptop).Update(), fault.InvalidIdentityUpdate, nil},
		"87 new member is the signer": {registered(), inbox(alice, 2).Add(alice, alice).Update(), fault.InvalidIdentityUpdate, nil},
		"88 new member signature by another key": {registered(), inbox(alice, 2).AddAs(alice, tablet, laptop.Member()).Update(),
			fault.InvalidIdentityUpdate, nil},
		"88 new wallet signature by another key": {registered(), inbox(alice, 2).AddAs(alice, carol, bob.Member()).Update(),
			fault.InvalidIdentityUpdate, nil},
		"88 checksummed new wallet": {registered(), inbox(alice, 2).AddAs(alice, bob, kit.EthereumMember(checksummed(bob.Text()))).Update(),
			fault.InvalidIdentityUpdate, nil},
		"89 existing member again":                 {registered(), inbox(alice, 2).Add(alice, phone).Update(), fault.InvalidIdentityUpdate, nil},
		"89 twice in one update":                   {registered(), inbox(alice, 2).Add(alice, laptop).Add(alice, laptop).Update(), fault.InvalidIdentityUpdate, nil},
		"89 again after its removal in one update": {registered(), inbox(alice, 2).Add(alice, laptop).Revoke(alice, laptop.Member()).Add(alice, laptop).Update(), accepted, members(alice, phone, laptop)},
		"90 same signatures after revoking": {
			append(registered(), inbox(alice, 2).Add(alice, laptop).Update(), inbox(alice, 3).Revoke(alice, laptop.Member()).Update()),
			inbox(alice, 2).Add(alice, laptop).Update(), fault.InvalidIdentityUpdate, nil},
		"90 fresh signatures after revoking": {
			append(registered(), inbox(alice, 2).Add(alice, laptop).Update(), inbox(alice, 3).Revoke(alice, laptop.Member()).Update()),
			inbox(alice, 4).Add(alice, laptop).Update(), accepted, members(alice, phone, laptop)},
		"90 same signature with another v": {
			append(registered(), inbox(alice, 2).Revoke(alice, laptop.Member()).Update()),
			inbox(alice, 2).Revoke(odd, laptop.Member()).Update(), fault.InvalidIdentityUpdate, nil},
		"90 same signature with a high s": {
			append(registered(), inbox(alice, 2).Revoke(alice, laptop.Member()).Update()),
			inbox(alice, 2).Revoke(altering(highSAndV), laptop.Member()).Update(), fault.InvalidIdentityUpdate, nil},
		"90 same signature of a passkey with the other s": {
			updates{create(passkey), inbox(passkey, 2).Revoke(passkey, laptop.Member()).Update()},
			inbox(passkey, 2).Revoke(otherS(t), laptop.Member()).Update(), fault.InvalidIdentityUpdate, nil},
		"91 revoke by a member that is not the recovery identifier": {
			append(registered(), inbox(alice, 2).Add(alice, bob).Update()),
			inbox(alice, 3).Revoke(bob, phone.Member()).Update(), fault.InvalidIdentityUpdate, nil},
		"91 revoke by an installation": {registered(), inbox(alice, 2).Revoke(phone, phone.Member()).Update(), fault.InvalidIdentityUpdate, nil},
		"92 revoke a wallet": {
			append(registered(),
				inbox(alice, 2).Add(alice, bob).Add(bob, laptop).Add(bob, carol).Add(carol, tablet).Add(bob, passkey).Update()),
			inbox(alice, 3).Revoke(alice, bob.Member()).Update(), accepted, members(alice, phone, carol, tablet, passkey)},
		"93 revoke a non-member":           {registered(), inbox(alice, 2).Revoke(alice, bob.Member()).Update(), accepted, members(alice, phone)},
		"93 revoke a checksummed spelling": {append(registered(), inbox(alice, 2).Add(alice, bob).Update()), inbox(alice, 3).Revoke(alice, kit.EthereumMember(checksummed(bob.Text()))).Update(), fault.InvalidIdentityUpdate, nil},
		"93 revoke a non-member that added": {
			append(registered(), inbox(alice, 2).ChangeRecovery(alice, bob.Text(), eth).Update(), inbox(alice, 3).Add(bob, laptop).Update()),
			inbox(alice, 4).Revoke(bob, bob.Member()).Update(), accepted, members(alice, phone)},
		"94 revoke the creator":             {updates{create(alice)}, inbox(alice, 2).Revoke(alice, alice.Member()).Update(), accepted, nil},
		"94 the revoked creator still adds": {updates{create(alice), inbox(alice, 2).Revoke(alice, alice.Member()).Update()}, inbox(alice, 3).Add(alice, phone).Update(), accepted, members(phone)},
		"95 revoke by the old recovery identifier": {
			append(registered(), inbox(alice, 2).ChangeRecovery(alice, bob.Text(), eth).Update()),
			inbox(alice, 3).Revoke(alice, phone.Member()).Update(), fault.InvalidIdentityUpdate, nil},
		"95 revoke by the new recovery identifier": {
			append(registered(), inbox(alice, 2).ChangeRecovery(alice, bob.Text(), eth).Update()),
			inbox(alice, 3).Revoke(bob, phone.Member()).Update(), accepted, members(alice)},
		"95 recovery change to a passkey": {
			append(registered(), inbox(alice, 2).ChangeRecovery(alice, passkey.Text(), asPasskey).Update()),
			inbox(alice, 3).Revoke(passkey, phone.Member()).Update(), accepted, members(alice)},
		"96 recovery change to an empty string":      {registered(), inbox(alice, 2).ChangeRecovery(alice, "", eth).Update(), fault.InvalidIdentityUpdate, nil},
		"96 recovery change to a checksummed string": {registered(), inbox(alice, 2).ChangeRecovery(alice, checksummed(bob.Text()), eth).Update(), fault.InvalidIdentityUpdate, nil},
		"97 create and revoke oneself":               {nil, inbox(alice, 1).Create(alice, 0).Revoke(alice, alice.Member()).Update(), accepted, nil},
		"107 inbox id in upper case":                 {nil, kit.NewUpdate(string(upper(kit.InboxID(alice, 0))), second).Create(alice, 0).Update(), fault.InvalidIdentityUpdate, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before, after, err := judge(t, story{c.history, c.update}, nil)
			snapshot := before.Members()
			requireReason(t, c.want, err)
			require.Equal(t, snapshot, before.Members(), "the state before must not change")
			if c.want == accepted {
				require.ElementsMatch(t, identifiers(c.members...), after.Members())
			} else {
				require.Nil(t, after)
			}
		})
	}
}

func TestEdge97LeavesNothingToLookUp(t *testing.T) {
	update := inbox(alice, 1).Create(alice, 0).Revoke(alice, alice.Member()).Update()
	before, after, err := judge(t, story{update: update}, nil)
	require.NoError(t, err)
	added, removed := association.Changes(before, after)
	require.Empty(t, added)
	require.Empty(t, removed)
	require.Equal(t, identifier(alice), after.RecoveryIdentifier())
}

func TestTwoUpdatesApplyToOneStateIndependently(t *testing.T) {
	// Three children of alice leave room for a fourth in the list they are in.
	tablet, watch, desktop := kit.NewInstallation("tablet"), kit.NewInstallation("watch"), kit.NewInstallation("desktop")
	history := append(registered(), inbox(alice, 2).Add(alice, laptop).Add(alice, tablet).Update())
	before, one, err := judge(t, story{history, inbox(alice, 3).Add(alice, watch).Update()}, nil)
	require.NoError(t, err)
	two, err := apply(t, before, inbox(alice, 3).Add(alice, desktop).Update(), nil)
	require.NoError(t, err)

	for _, state := range []*association.State{one, two} {
		after, err := apply(t, state, inbox(alice, 4).Revoke(alice, alice.Member()).Update(), nil)
		require.NoError(t, err)
		require.Empty(t, after.Members())
	}
	require.ElementsMatch(t, identifiers(alice, phone, laptop, tablet), before.Members())
}

func TestUnverifiedUpdateIsBroken(t *testing.T) {
	_, err := new(association.State).Apply(association.Verified{})
	require.Equal(t, fault.Broken, fault.KindOf(err))
}

// Proves IDENT-001.
func TestStructuralMutations(t *testing.T) {
	full := func() *associations.IdentityUpdate {
		return inbox(alice, 1).Create(alice, 0).Add(alice, phone).Revoke(alice, laptop.Member()).
			ChangeRecovery(alice, passkey.Text(), asPasskey).Add(alice, passkey).Update()
	}
	malformed, structural := fault.MalformedPayload, fault.InvalidIdentityUpdate
	cases := map[string]struct {
		mutate func(u *associations.IdentityUpdate)
		want   fault.Reason
	}{
		"none":                               {func(*associations.IdentityUpdate) {}, accepted},
		"107 inbox id empty":                 {func(u *associations.IdentityUpdate) { u.InboxId = "" }, malformed},
		"107 inbox id with 0x":               {func(u *associations.IdentityUpdate) { u.InboxId = "0x" + u.InboxId }, malformed},
		"107 inbox id with 0x and 62 digits": {func(u *associations.IdentityUpdate) { u.InboxId = "0x" + u.InboxId[2:] }, malformed},
		"107 inbox id of 63 digits":          {func(u *associations.IdentityUpdate) { u.InboxId = u.InboxId[1:] }, malformed},
		"107 inbox id of 66 digits":          {func(u *associations.IdentityUpdate) { u.InboxId += "00" }, malformed},
		"109 action kind unset":              {func(u *associations.IdentityUpdate) { u.Actions[0].Kind = nil }, structural},
		"109 create without signature":       {func(u *associations.IdentityUpdate) { u.Actions[0].GetCreateInbox().InitialIdentifierSignature = nil }, structural},
		"109 create, signature kind unset": {func(u *associations.IdentityUpdate) {
			u.Actions[0].GetCreateInbox().InitialIdentifierSignature.Signature = nil
		}, structural},
		"109 create, passkey not hex":        {func(u *associations.IdentityUpdate) { u.Actions[0].GetCreateInbox().InitialIdentifierKind = asPasskey }, structural},
		"109 add without member":             {func(u *associations.IdentityUpdate) { u.Actions[1].GetAdd().NewMemberIdentifier = nil }, structural},
		"109 add, member kind unset":         {func(u *associations.IdentityUpdate) { u.Actions[1].GetAdd().NewMemberIdentifier.Kind = nil }, structural},
		"109 add without existing signature": {func(u *associations.IdentityUpdate) { u.Actions[1].GetAdd().ExistingMemberSignature = nil }, structural},
		"109 add without new signature":      {func(u *associations.IdentityUpdate) { u.Actions[1].GetAdd().NewMemberSignature = nil }, structural},
		"109 add, new signature kind unset":  {func(u *associations.IdentityUpdate) { u.Actions[1].GetAdd().NewMemberSignature.Signature = nil }, structural},
		"109 revoke without member":          {func(u *associations.IdentityUpdate) { u.Actions[2].GetRevoke().MemberToRevoke = nil }, structural},
		"109 revoke, member kind unset":      {func(u *associations.IdentityUpdate) { u.Actions[2].GetRevoke().MemberToRevoke.Kind = nil }, structural},
		"109 revoke without signature":       {func(u *associations.IdentityUpdate) { u.Actions[2].GetRevoke().RecoveryIdentifierSignature = nil }, structural},
		"109 change without signature": {func(u *associations.IdentityUpdate) {
			u.Actions[3].GetChangeRecoveryAddress().ExistingRecoveryIdentifierSignature = nil
		}, structural},
		"109 change, passkey with 0x": {func(u *associations.IdentityUpdate) {
			u.Actions[3].GetChangeRecoveryAddress().NewRecoveryIdentifier = "0x04"
		}, structural},
		"109 change, passkey of odd length": {func(u *associations.IdentityUpdate) {
			u.Actions[3].GetChangeRecoveryAddress().NewRecoveryIdentifier = "040"
		}, structural},
		"109 no actions": {func(u *associations.IdentityUpdate) { u.Actions = nil }, structural},
		"109 legacy signature": {func(u *associations.IdentityUpdate) {
			u.Actions[0].GetCreateInbox().InitialIdentifierSignature = kit.Legacy{Signer: alice}.Sign("")
		}, structural},
		"13 create, checksummed": {func(u *associations.IdentityUpdate) {
			u.Actions[0].GetCreateInbox().InitialIdentifier = checksummed(alice.Text())
		}, structural},
		"13 add, checksummed": {func(u *associations.IdentityUpdate) {
			u.Actions[1].GetAdd().NewMemberIdentifier = kit.EthereumMember(checksummed(alice.Text()))
		}, structural},
		"13 revoke, checksummed": {func(u *associations.IdentityUpdate) {
			u.Actions[2].GetRevoke().MemberToRevoke = kit.EthereumMember(checksummed(alice.Text()))
		}, structural},
		"13 revoke, without 0x": {func(u *associations.IdentityUpdate) {
			u.Actions[2].GetRevoke().MemberToRevoke = kit.EthereumMember(alice.Text()[2:])
		}, structural},
		"13 revoke, 39 digits": {func(u *associations.IdentityUpdate) {
			u.Actions[2].GetRevoke().MemberToRevoke = kit.EthereumMember(alice.Text()[:41])
		}, structural},
		"13 revoke, 41 digits": {func(u *associations.IdentityUpdate) {
			u.Actions[2].GetRevoke().MemberToRevoke = kit.EthereumMember(alice.Text() + "0")
		}, structural},
		"13 revoke, no hex": {func(u *associations.IdentityUpdate) {
			u.Actions[2].GetRevoke().MemberToRevoke = kit.EthereumMember(alice.Text()[:41] + "g")
		}, structural},
		"13 revoke, 0X": {func(u *associations.IdentityUpdate) {
			u.Actions[2].GetRevoke().MemberToRevoke = kit.EthereumMember("0X" + alice.Text()[2:])
		}, structural},
		"13 change, kind unset": {func(u *associations.IdentityUpdate) {
			u.Actions[3].GetChangeRecoveryAddress().NewRecoveryIdentifierKind = 0
		}, structural},
		"actions in another order": {func(u *associations.IdentityUpdate) { u.Actions[0], u.Actions[1] = u.Actions[1], u.Actions[0] }, fault.InvalidSignature},
		"an action less":           {func(u *associations.IdentityUpdate) { u.Actions = u.Actions[:2] }, fault.InvalidSignature},
		"an action twice":          {func(u *associations.IdentityUpdate) { u.Actions = append(u.Actions, u.Actions[1]) }, fault.InvalidSignature},
		"another member":           {func(u *associations.IdentityUpdate) { u.Actions[2].GetRevoke().MemberToRevoke = alice.Member() }, fault.InvalidSignature},
		"another nonce":            {func(u *associations.IdentityUpdate) { u.Actions[0].GetCreateInbox().Nonce++ }, fault.InvalidIdentityUpdate},
		"signatures of one action swapped": {func(u *associations.IdentityUpdate) {
			a := u.Actions[1].GetAdd()
			a.NewMemberSignature, a.ExistingMemberSignature = a.ExistingMemberSignature, a.NewMemberSignature
		}, fault.InvalidIdentityUpdate},
		"relying party, which nobody signs": {func(u *associations.IdentityUpdate) { u.Actions[0].GetCreateInbox().RelyingParty = proto.String("x") }, accepted},
		"passkey relying party, which neither": {func(u *associations.IdentityUpdate) {
			u.Actions[4].GetAdd().NewMemberIdentifier.GetPasskey().RelyingParty = proto.String("x")
		}, accepted},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			update := full()
			c.mutate(update)
			_, _, err := judge(t, story{update: update}, nil)
			requireReason(t, c.want, err)
		})
	}
	t.Run("no update at all", func(t *testing.T) {
		_, err := association.Prepare(nil)
		requireReason(t, malformed, err)
	})
}

func TestNonsenseAsksForLittleMemory(t *testing.T) {
	// 100,000 actions of which the first is already bad: 200 kB on the wire.
	update := inbox(alice, 1).Update()
	for range 100_000 {
		update.Actions = append(update.Actions, new(associations.IdentityAction))
	}
	result := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			_, err := association.Prepare(update)
			require.Error(b, err)
		}
	})
	require.Less(t, result.AllocedBytesPerOp(), int64(16<<10))
}

func TestReplayOfHistoryThatDoesNotApplyIsBroken(t *testing.T) {
	stranger := kit.NewUpdate(kit.InboxID(alice, 0), second).CreateAs(bob, alice.Text(), eth, 0).Update()
	malformed := registered()[0]
	malformed.InboxId = "00"
	cases := map[string]updates{
		"no create":          {inbox(alice, 1).Add(alice, phone).Update()},
		"another's signer":   {stranger},
		"create twice":       append(registered(), create(alice)),
		"structure":          {{InboxId: kit.InboxID(alice, 0), Actions: []*associations.IdentityAction{{}}}},
		"inbox id":           {malformed},
		"ECDSA not readable": {create(altering(func(rsv []byte) []byte { return rsv[:10] }))},
		"another's device":   append(registered(), inbox(alice, 2).Add(bob, laptop).Update()),
		"another's removal":  append(registered(), inbox(alice, 2).Revoke(bob, phone.Member()).Update()),
	}
	for name, history := range cases {
		t.Run(name, func(t *testing.T) {
			state, err := association.Replay(history)
			require.Nil(t, state)
			require.Error(t, err)
			require.Equal(t, fault.Broken, fault.KindOf(err))
		})
	}
	empty, err := association.Replay(nil)
	require.NoError(t, err)
	require.Empty(t, empty.InboxID())
}
