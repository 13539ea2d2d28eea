package association_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// actor is somebody in the model: a signer and what the rules know of its
// signatures.
type actor struct {
	name   string
	id     string // as whom it signs; several actors can be one identifier
	chain  string
	signer kit.Signer
}

func (a actor) installation() bool { return a.id[0] == 'i' }

func actors() []actor {
	safe := kit.NewContractWallet("safe", "eip155:1", 7)
	onTen := *safe
	onTen.AccountID = "eip155:10:" + safe.Contract
	return []actor{
		{name: "alice", id: "alice", signer: alice},
		{name: "alice as contract", id: "alice", chain: "1", signer: asEOA(alice, "eip155:1")},
		{name: "bob", id: "bob", signer: bob},
		{name: "passkey", id: "passkey", signer: passkey},
		{name: "safe on 1", id: "safe", chain: "1", signer: safe},
		{name: "safe on 10", id: "safe", chain: "10", signer: &onTen},
		{name: "phone", id: "iphone", signer: phone},
		{name: "laptop", id: "ilaptop", signer: laptop},
	}
}

type modelMember struct{ addedBy, chain string }

// model is the table of rules, without cryptography, kept as plainly as it can be
// written (docs/validation.md#identity-updates).
type model struct {
	creator  string // whose identifier the inbox id comes from
	created  bool
	recovery string
	members  map[string]modelMember
}

func (m model) clone() model {
	m.members = maps.Clone(m.members)
	return m
}

func (m *model) create(by actor) bool {
	if m.created || by.id != m.creator || by.installation() {
		return false
	}
	m.created, m.recovery = true, by.id
	m.members = map[string]modelMember{by.id: {chain: by.chain}}
	return true
}

func (m *model) add(existing, added actor) bool {
	if _, again := m.members[added.id]; !m.created || existing.id == added.id || again {
		return false
	}
	if member, ok := m.members[existing.id]; ok {
		if member.chain != existing.chain {
			return false
		}
	} else if existing.id != m.recovery {
		return false
	}
	if existing.installation() && added.installation() {
		return false
	}
	m.members[added.id] = modelMember{addedBy: existing.id, chain: added.chain}
	return true
}

func (m *model) recoveryMaySign(by actor) bool {
	member, isMember := m.members[by.id]
	return m.created && (!isMember || member.chain == by.chain) && by.id == m.recovery
}

func (m *model) revoke(by actor, target string) bool {
	if !m.recoveryMaySign(by) {
		return false
	}
	delete(m.members, target)
	for id, member := range m.members {
		if id[0] == 'i' && member.addedBy == target {
			delete(m.members, id)
		}
	}
	return true
}

func (m *model) change(by actor, to string) bool {
	if m.recoveryMaySign(by) {
		m.recovery = to
		return true
	}
	return false
}

// TestStateAgreesWithTheRules applies random updates by random signers to the
// state and to the model.
//
// Proves IDENT-001, IDENT-030.
func TestStateAgreesWithTheRules(t *testing.T) {
	all := actors()
	byID := map[string]actor{}
	for _, a := range all {
		byID[a.id] = a
	}
	rapid.Check(t, func(t *rapid.T) {
		anyone := rapid.SampledFrom(all)
		nonce := rapid.Uint64Range(0, 1).Draw(t, "nonce")
		creator := anyone.Filter(func(a actor) bool { return !a.installation() }).Draw(t, "creator")
		inboxID := kit.InboxID(creator.signer, nonce)
		state, want := new(association.State), model{creator: creator.id}
		var history []*associations.IdentityUpdate
		for step := range rapid.IntRange(1, 10).Draw(t, "updates") {
			next, fits := want.clone(), true
			update := kit.NewUpdate(inboxID, uint64(step)*second)
			if step == 0 {
				update.Create(creator.signer, nonce)
				fits = next.create(creator)
			}
			for range rapid.IntRange(0, 3).Draw(t, "actions") {
				by, about := anyone.Draw(t, "by"), anyone.Draw(t, "about")
				var ok bool
				switch kind := rapid.SampledFrom([]string{"add", "add", "add", "revoke", "change", "create"}).Draw(t, "kind"); {
				case kind == "add":
					update.Add(by.signer, about.signer)
					ok = next.add(by, about)
				case kind == "revoke":
					update.Revoke(by.signer, about.signer.Member())
					ok = next.revoke(by, about.id)
				case kind == "create" && !by.installation():
					update.Create(by.signer, nonce)
					ok = next.create(by)
				case about.installation(): // cannot be a recovery identifier
					continue
				default:
					update.ChangeRecovery(by.signer, about.signer.Text(), about.signer.Kind())
					ok = next.change(by, about.id)
				}
				fits = fits && ok
			}
			members := state.Members()
			after, err := applyRapid(t, state, update.Update())
			require.Equal(t, members, state.Members())
			if len(update.Update().GetActions()) == 0 || !fits || !next.created {
				require.Error(t, err)
				require.Equal(t, fault.InvalidIdentityUpdate, fault.Of(err).Reason)
				continue
			}
			require.NoError(t, err)
			history, state, want = append(history, update.Update()), after, next
			requireModel(t, want, state, byID)
			// Whatever was accepted once is refused in any other encoding.
			_, err = applyRapid(t, state, reencoded(t, rapid.SampledFrom(history).Draw(t, "again")))
			require.Error(t, err)
			require.Equal(t, fault.InvalidIdentityUpdate, fault.Of(err).Reason)
		}
		replayed, err := association.Replay(history)
		require.NoError(t, err)
		require.Equal(t, state.Members(), replayed.Members())
	})
}

func requireModel(t *rapid.T, want model, state *association.State, byID map[string]actor) {
	members := make([]association.Identifier, 0, len(want.members))
	for _, id := range slices.Sorted(maps.Keys(want.members)) {
		members = append(members, identifier(byID[id].signer))
	}
	require.ElementsMatch(t, members, state.Members())
	require.Equal(t, identifier(byID[want.recovery].signer), state.RecoveryIdentifier())
}

func applyRapid(t *rapid.T, state *association.State, wire *associations.IdentityUpdate) (*association.State, error) {
	update, err := association.Prepare(wire)
	if err != nil {
		require.Empty(t, wire.GetActions())
		return nil, err
	}
	verified, err := update.Verify(t.Context(), kit.AcceptAll{})
	require.NoError(t, err, fmt.Sprint(wire))
	return state.Apply(verified)
}

// reencoded returns the update with signatures that are as good, and other bytes
// where they can be.
func reencoded(t *rapid.T, update *associations.IdentityUpdate) *associations.IdentityUpdate {
	text, err := association.SignatureText(update)
	require.NoError(t, err)
	update = clone(update)
	for _, s := range signaturesOf(update) {
		switch {
		case s.GetErc_191() != nil:
			s.GetErc_191().Bytes = reencodedECDSA(t, s.GetErc_191().GetBytes())
		case s.GetErc_6492() != nil && rapid.Bool().Draw(t, "another block"):
			s.GetErc_6492().BlockNumber++
		case s.GetInstallationKey() != nil:
			for _, i := range []*kit.Installation{phone, laptop} {
				if string(i.PublicKey()) == string(s.GetInstallationKey().GetPublicKey()) && rapid.Bool().Draw(t, "signs again") {
					proto.Merge(s, i.SignAgain(text))
				}
			}
		case s.GetPasskey() != nil && rapid.Bool().Draw(t, "other s"):
			s.GetPasskey().Signature = otherSOf(t, s.GetPasskey().GetSignature())
		}
	}
	return update
}

func reencodedECDSA(t *rapid.T, rsv []byte) []byte {
	rsv = slices.Clone(rsv)
	if rapid.Bool().Draw(t, "high s") {
		rsv = highSAndV(rsv)
	}
	if rapid.Bool().Draw(t, "v of 0 or 1") {
		rsv[64] -= 27
	}
	return rsv
}
