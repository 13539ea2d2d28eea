package association_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// oldLog is a log that older rules accepted, what it leads to, and where today's
// clients stop.
type oldLog struct {
	history  updates
	members  []kit.Signer
	recovery kit.Signer // who can extend the log
	refused  int
}

func oldLogs() map[string]oldLog {
	bare := kit.NewContractWallet("safe", "eip155:1", 7)
	bare.Contract, bare.AccountID = bare.Contract[2:], "eip155:01:"+bare.Contract[2:]
	v35 := func(parity byte) byte { return 35 + parity }
	v37 := func(parity byte) byte { return 37 + parity }
	v0 := func(parity byte) byte { return parity }
	added := inbox(alice, 2).Add(alice, laptop).Update()
	members := func(signers ...kit.Signer) []kit.Signer { return signers }
	legacy := kit.Legacy{Signer: alice}
	return map[string]oldLog{
		"no actions":              {append(registered(), inbox(alice, 2).Update()), members(alice, phone), alice, 1},
		"a member again":          {append(registered(), inbox(alice, 2).Add(alice, phone).Update()), members(alice, phone), alice, 1},
		"v of 35":                 {append(registered(), inbox(alice, 2).Add(withV(v35), laptop).Update()), members(alice, phone, laptop), alice, 1},
		"high s, v left alone":    {updates{inbox(alice, 1).Create(altering(highS), 0).Add(altering(highS), phone).Update()}, members(alice, phone), alice, 0},
		"high s, the right v":     {updates{inbox(alice, 1).Create(altering(highSAndV), 0).Add(altering(highSAndV), phone).Update()}, members(alice, phone), alice, -1},
		"high s of a removal":     {append(registered(), inbox(alice, 2).Revoke(altering(highS), phone.Member()).Update()), members(alice), alice, 1},
		"high s and v of 35":      {append(registered(), inbox(alice, 2).Revoke(altering(func(rsv []byte) []byte { rsv = highS(rsv); rsv[64] += 8; return rsv }), phone.Member()).Update()), members(alice), alice, 1},
		"checksummed removal":     {append(registered(), inbox(alice, 2).Revoke(alice, kit.EthereumMember(checksummed(bob.Text()))).Update()), members(alice, phone), alice, 1},
		"account without 0x":      {append(registered(), inbox(alice, 2).Add(alice, bare).Update()), members(alice, phone, bare), alice, 1},
		"chain with a zero":       {updates{create(onChain("eip155:01"))}, members(onChain("eip155:1")), onChain("eip155:1"), 0},
		"legacy create":           {updates{inbox(alice, 1).Create(legacy, 0).Add(legacy, phone).Update()}, members(alice, phone), alice, 0},
		"legacy new member":       {append(registered(), inbox(alice, 2).Add(phone, kit.Legacy{Signer: bob}).Update()), members(alice, phone, bob), alice, 1},
		"legacy existing member":  {append(registered(), inbox(alice, 2).Add(alice, bob).Add(legacy, laptop).Update()), members(alice, phone, bob, laptop), alice, 1},
		"replayed with another v": {append(registered(), added, inbox(alice, 3).Revoke(alice, laptop.Member()).Update(), inbox(alice, 2).Add(withV(v0), laptop).Update()), members(alice, phone, laptop), alice, 3},
		"one add many times": {append(registered(), added, inbox(alice, 2).Add(withV(v35), laptop).Update(), inbox(alice, 2).Add(withV(v37), laptop).Update()),
			members(alice, phone, laptop), alice, 2},
	}
}

func onChain(chainID string) *kit.ContractWallet { return kit.NewContractWallet("safe", chainID, 7) }

// What older rules accepted replays, and whoever holds recovery goes on from there by
// today's rules.
func TestALogOfOlderRulesReplaysAndIsExtended(t *testing.T) {
	for name, log := range oldLogs() {
		t.Run(name, func(t *testing.T) {
			state, err := association.Replay(log.history)
			require.NoError(t, err)
			require.ElementsMatch(t, identifiers(log.members...), state.Members())
			require.Equal(t, identifier(log.recovery), state.RecoveryIdentifier())

			next := kit.NewUpdate(state.InboxID(), 9*second).Add(log.recovery, kit.NewInstallation("new")).Revoke(log.recovery, log.recovery.Member())
			after, err := apply(t, state, next.Update(), kit.AcceptAll{})
			require.NoError(t, err)
			require.False(t, after.IsMember(identifier(log.recovery)))
		})
	}
}

// Nothing that is stored serves again, in whatever encoding it is stored and sent.
//
// Proves IDENT-050.
func TestSignaturesOfAnOldLogAreUsed(t *testing.T) {
	encodings := map[string]func() kit.Signer{
		"as it was":      func() kit.Signer { return alice },
		"v of 0 and 1":   func() kit.Signer { return withV(func(parity byte) byte { return parity }) },
		"v of 35 and 36": func() kit.Signer { return withV(func(parity byte) byte { return 35 + parity }) },
		"high s":         func() kit.Signer { return altering(highSAndV) },
		"high s, old v":  func() kit.Signer { return altering(highS) },
	}
	for stored, first := range encodings {
		history := append(registered(), inbox(alice, 2).Add(first(), laptop).Update(), inbox(alice, 3).Revoke(alice, laptop.Member()).Update())
		state, err := association.Replay(history)
		require.NoError(t, err, stored)
		require.NotContains(t, state.Members(), identifier(laptop))
		for sent, again := range encodings {
			fresh := signer{laptop, laptop.SignAgain}
			_, err := apply(t, state, inbox(alice, 2).Add(again(), fresh).Update(), nil)
			require.Equal(t, fault.Invalid, fault.KindOf(err), "stored with %s, sent with %s", stored, sent)
		}
	}
}

// A plain wallet's signature does not serve again in the guise of a contract's.
func TestAUsedSignatureOfAWalletIsNoContracts(t *testing.T) {
	history := append(registered(), inbox(alice, 2).Add(phone, bob).Update(), inbox(alice, 3).Revoke(alice, bob.Member()).Update())
	state, err := association.Replay(history)
	require.NoError(t, err)
	for _, guise := range []kit.Signer{bob, asEOA(bob, "eip155:1")} {
		_, err := apply(t, state, inbox(alice, 2).Add(signer{phone, phone.SignAgain}, guise).Update(), kit.AcceptAll{})
		requireReason(t, fault.InvalidIdentityUpdate, err)
	}
}

// A legacy signature that no older rules accepted is not taken on trust.
func TestALegacySignatureNeverRevoked(t *testing.T) {
	legacy := kit.Legacy{Signer: alice}
	for name, update := range map[string]*associations.IdentityUpdate{
		"revoke": inbox(alice, 2).Revoke(legacy, phone.Member()).Update(),
		"change": inbox(alice, 2).ChangeRecovery(legacy, bob.Text(), eth).Update(),
	} {
		_, err := association.Replay(append(registered(), update))
		require.Equal(t, fault.Broken, fault.KindOf(err), name)
	}
}

func TestAuditorFindsTheFirstUpdateThatClientsRefuse(t *testing.T) {
	audit := func(history updates) int {
		var auditor association.Auditor
		for i, update := range history {
			if err := auditor.Next(t.Context(), update); err != nil {
				require.Equal(t, fault.Invalid, fault.KindOf(err))
				return i
			}
		}
		return -1
	}
	for name, log := range oldLogs() {
		t.Run(name, func(t *testing.T) { require.Equal(t, log.refused, audit(log.history)) })
	}
	// A hundred signatures are the backend's bound, not the clients'.
	require.Equal(t, -1, audit(append(registered(), contracts(101))))
}
