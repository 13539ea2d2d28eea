package association_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// Proves API-122.
func TestLookupKey(t *testing.T) {
	address := alice.Address()
	small := passkey.Compressed().Text()
	cases := map[string]struct {
		kind       associations.IdentifierKind
		identifier string
		want       string
		ok         bool
	}{
		"lower case":                         {eth, address, address, true},
		"111 checksummed":                    {eth, checksummed(address), address, true},
		"upper-case 0X":                      {eth, "0X" + address[2:], address, true},
		"contract wallet without 0x":         {eth, address[2:], address[2:], true},
		"110 kind 0":                         {0, checksummed(address), address, true},
		"112 address as passkey":             {asPasskey, address, "", false},
		"unknown kind":                       {3, address, "", false},
		"negative kind":                      {-1, address, "", false},
		"empty address":                      {eth, "", "", false},
		"address one digit short":            {eth, address[:41], "", false},
		"address one digit longer":           {eth, address + "0", "", false},
		"42 digits without 0x":               {eth, strings.Repeat("1", 42), "", false},
		"40 characters with 0x":              {eth, address[:40], "", false},
		"not hex":                            {eth, address[:41] + "g", "", false},
		"NUL in an address":                  {eth, address[:41] + "\x00", "", false},
		"not ASCII":                          {eth, address[:40] + "é", "", false},
		"a letter that lower case makes hex": {eth, address[:39] + "\u212a", "", false},
		"passkey":                            {asPasskey, passkey.Text(), passkey.Text(), true},
		"passkey in upper case":              {asPasskey, strings.ToUpper(passkey.Text()), passkey.Text(), true},
		"compressed passkey":                 {asPasskey, small, small, true},
		"passkey with 0x":                    {asPasskey, "0x" + passkey.Text()[2:], "", false},
		"passkey as address":                 {eth, passkey.Text(), "", false},
		"passkey one digit short":            {asPasskey, small[1:], "", false},
		"NUL in a passkey":                   {asPasskey, small[1:] + "\x00", "", false},
		"empty passkey":                      {asPasskey, "", "", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			key, ok := association.LookupKey(c.kind, c.identifier)
			require.Equal(t, c.ok, ok)
			require.Equal(t, c.want, key)
		})
	}
}

// Proves API-122.
func TestChangesAreDifferencesOfWholeUpdates(t *testing.T) {
	cases := map[string]struct {
		history        updates
		update         *associations.IdentityUpdate
		added, removed []kit.Signer
	}{
		"first update": {nil, kit.Register(alice, 0, phone, second), []kit.Signer{alice}, nil},
		"wallet and passkey added, installation left out": {registered(),
			inbox(alice, 2).Add(alice, bob).Add(alice, passkey).Add(alice, laptop).Update(), []kit.Signer{bob, passkey}, nil},
		"wallet removed with its installation": {append(registered(), inbox(alice, 2).Add(alice, bob).Add(bob, laptop).Update()),
			inbox(alice, 3).Revoke(alice, bob.Member()).Update(), nil, []kit.Signer{bob}},
		"removed and added again in one update": {append(registered(), inbox(alice, 2).Add(alice, bob).Update()),
			inbox(alice, 3).Revoke(alice, bob.Member()).Add(alice, bob).Update(), nil, nil},
		"one added, one removed": {append(registered(), inbox(alice, 2).Add(alice, bob).Update()),
			inbox(alice, 3).Revoke(alice, bob.Member()).Add(alice, passkey).Update(), []kit.Signer{passkey}, []kit.Signer{bob}},
		"recovery identifier that is no member": {registered(), inbox(alice, 2).ChangeRecovery(alice, bob.Text(), eth).Update(), nil, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before, after, err := judge(t, story{c.history, c.update}, nil)
			require.NoError(t, err)
			added, removed := association.Changes(before, after)
			require.ElementsMatch(t, identifiers(c.added...), added)
			require.ElementsMatch(t, identifiers(c.removed...), removed)
			for _, i := range append(added, removed...) {
				kind, key, ok := i.LookupKey()
				require.True(t, ok)
				found, ok := association.LookupKey(kind, i.Text())
				require.True(t, ok)
				require.Equal(t, found, key)
			}
		})
	}
	added, removed := association.Changes(nil, nil)
	require.Empty(t, added)
	require.Empty(t, removed)
	_, _, ok := identifier(phone).LookupKey()
	require.False(t, ok)
}

// TestEdge113Table keeps by hand what lookups are answered from (API-122): an
// identifier moves to another inbox and back.
//
// Proves API-053.
func TestEdge113OlderInboxIsRevealed(t *testing.T) {
	type row struct{ association, revocation int }
	rows := map[string]row{} // of bob, by inbox
	states := map[string]*association.State{}
	sequence := 0
	commit := func(update *associations.IdentityUpdate) {
		sequence += 10
		before := states[update.GetInboxId()]
		if before == nil {
			before = new(association.State)
		}
		after, err := apply(t, before, update, nil)
		require.NoError(t, err)
		added, removed := association.Changes(before, after)
		for _, i := range added {
			if i == identifier(bob) {
				rows[update.GetInboxId()] = row{association: sequence}
			}
		}
		for _, i := range removed {
			if i == identifier(bob) {
				rows[update.GetInboxId()] = row{rows[update.GetInboxId()].association, sequence}
			}
		}
		states[update.GetInboxId()] = after
	}
	lookup := func() (inboxID string) {
		newest := 0
		for id, r := range rows {
			if r.revocation == 0 && r.association > newest {
				inboxID, newest = id, r.association
			}
		}
		return inboxID
	}
	x, y := kit.InboxID(bob, 0), kit.InboxID(alice, 0)

	commit(create(bob))
	require.Equal(t, x, lookup())
	commit(create(alice))
	commit(inbox(alice, 2).Add(alice, bob).Update())
	require.Equal(t, y, lookup())
	commit(inbox(alice, 3).Revoke(alice, bob.Member()).Update())
	require.Equal(t, x, lookup(), "113 revoked in the newer inbox")
	commit(inbox(alice, 4).Add(alice, bob).Update())
	require.Equal(t, y, lookup())
}

func TestInboxIDs(t *testing.T) {
	vectors := map[string]struct {
		identifier string
		nonce      uint64
	}{
		"fcd18d86276d7a99fe522dba9660c420f03c8648785ada7c5daae232a3df77a9": {"0x1234567890abcdef1234567890abcdef12345678", 0},
		"01177004c63739c1298c8edbbc09b2017999e1368b972307cd3e167b1bcb23c6": {"0xf0ea7663233f99d0c12370671abbb6cca980a490", 9418603855934813849},
		"49e1396746325730af75afa0dcb927979a4f2c0bb2cba6fc793a6d9cfccd7a2c": {"0xbc08f43b87d2ac15e8abac3ece50d3d339d41447", 4203349998327718066},
		"4e762340a0a528b4c029795a152da35494e13b2fc75c7d47c3b7a07906da1feb": {"0x1ae39f4a7ad91d665c9a93d9c3a3327e9ce2f430", 2981054984627975343},
		"760ffbb4d7b9deafc77f3b09c35c63ac4daf51231a890380ae8302dc4cfca9f4": {"0x635b322930f0ed629846faecce94db50400fd47e", 0},
	}
	for want, v := range vectors {
		require.Equal(t, want, association.InboxID(v.identifier, v.nonce))
		lower, err := association.ParseInboxID(want)
		require.NoError(t, err)
		higher, err := association.ParseInboxID(strings.ToUpper(want))
		require.NoError(t, err)
		require.Equal(t, lower, higher)
	}
}
