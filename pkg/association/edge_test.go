package association_test

import (
	"crypto"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha512"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"math/big"
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// The cast of the stories below.
var (
	alice   = kit.NewWallet("alice")
	bob     = kit.NewWallet("bob")
	phone   = kit.NewInstallation("phone")
	laptop  = kit.NewInstallation("laptop")
	passkey = kit.NewPasskey("alice")
)

const (
	second    = 1_000_000_000
	eth       = associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM
	asPasskey = associations.IdentifierKind_IDENTIFIER_KIND_PASSKEY

	// accepted is the reason of what has none.
	accepted = fault.NoReason
)

// story is an update that meets an inbox with some history.
type story struct {
	history []*associations.IdentityUpdate
	update  *associations.IdentityUpdate
}

// judge verifies the update and applies it to the state of the history, each
// update of which must be good itself.
func judge(t *testing.T, s story, verifier association.ContractVerifier) (before, after *association.State, err error) {
	t.Helper()
	before = new(association.State)
	for i, update := range s.history {
		before, err = apply(t, before, update, kit.AcceptAll{})
		require.NoError(t, err, "history %d", i)
	}
	replayed, err := association.Replay(s.history)
	require.NoError(t, err)
	require.Equal(t, before.Members(), replayed.Members())
	after, err = apply(t, replayed, s.update, verifier)
	return replayed, after, err
}

func apply(t *testing.T, state *association.State, wire *associations.IdentityUpdate, verifier association.ContractVerifier) (*association.State, error) {
	t.Helper()
	update, err := association.Prepare(wire)
	if err != nil {
		return nil, err
	}
	verified, err := update.Verify(t.Context(), verifier)
	if err != nil {
		return nil, err
	}
	return state.Apply(verified)
}

// requireReason says that err is accepted, or Invalid with the reason.
func requireReason(t *testing.T, want fault.Reason, err error) {
	t.Helper()
	if want == accepted {
		require.NoError(t, err)
		return
	}
	require.Error(t, err)
	require.Equal(t, fault.Invalid, fault.KindOf(err), err)
	require.Equal(t, want, fault.Of(err).Reason, err)
}

// signer is another signer with its own way of signing.
type signer struct {
	kit.Signer
	sign func(text string) *associations.Signature
}

func (s signer) Sign(text string) *associations.Signature { return s.sign(text) }

// altering returns alice's wallet with its signature bytes changed.
func altering(change func(rsv []byte) []byte) kit.Signer {
	return signer{alice, func(text string) *associations.Signature {
		return kit.ERC191(change(alice.SignHash(kit.PersonalHash(text))))
	}}
}

// withV returns alice's wallet signing with another encoding of v.
func withV(encode func(parity byte) byte) kit.Signer {
	return altering(func(rsv []byte) []byte {
		rsv[64] = encode(rsv[64] - 27)
		return rsv
	})
}

func highS(rsv []byte) []byte {
	var s secp256k1.ModNScalar
	s.SetByteSlice(rsv[32:64])
	s.Negate().PutBytesUnchecked(rsv[32:64])
	return rsv
}

func create(by kit.Signer) *associations.IdentityUpdate {
	return kit.NewUpdate(kit.InboxID(by, 0), second).Create(by, 0).Update()
}

// inbox begins an update of the inbox that create(by) makes, at a later time.
func inbox(by kit.Signer, seconds uint64) *kit.Builder {
	return kit.NewUpdate(kit.InboxID(by, 0), seconds*second)
}

func registered() []*associations.IdentityUpdate {
	return []*associations.IdentityUpdate{kit.Register(alice, 0, phone, second)}
}

func checksummed(address string) string { return "0x" + string(upper(address[2:])) }

func upper(s string) []byte {
	b := []byte(s)
	for i, c := range b {
		if c >= 'a' && c <= 'f' {
			b[i] = c - 32
		}
	}
	return b
}

// stamped moves the time of a signed update.
func stamped(update *associations.IdentityUpdate, ns uint64) *associations.IdentityUpdate {
	update.ClientTimestampNs = ns
	return update
}

// Proves API-043, IDENT-030.
func TestEdgeCasesOfSignatures(t *testing.T) {
	plain := signer{phone, func(text string) *associations.Signature {
		digest := sha512.Sum512([]byte(text))
		return phone.Wrap(ed25519.Sign(phone.Key, digest[:]))
	}}
	withoutContext := signer{phone, func(text string) *associations.Signature {
		digest := sha512.Sum512([]byte(text))
		signature, err := phone.Key.Sign(nil, digest[:], &ed25519.Options{Hash: crypto.SHA512})
		require.NoError(t, err)
		return phone.Wrap(signature)
	}}
	cases := map[string]struct {
		update *associations.IdentityUpdate
		want   fault.Reason
	}{
		"60 one wallet signature used twice":         {kit.Register(alice, 0, phone, second), accepted},
		"64 wrong nonce for the inbox id":            {kit.NewUpdate(kit.InboxID(alice, 0), second).Create(alice, 1).Update(), fault.InvalidIdentityUpdate},
		"65 create signed by another wallet":         {kit.NewUpdate(kit.InboxID(alice, 0), second).CreateAs(bob, alice.Text(), eth, 0).Update(), fault.InvalidIdentityUpdate},
		"66 checksummed owner":                       {kit.NewUpdate(association.InboxID(checksummed(alice.Text()), 0), second).CreateAs(alice, checksummed(alice.Text()), eth, 0).Update(), fault.InvalidIdentityUpdate},
		"67 ECDSA of 64 bytes":                       {create(altering(func(rsv []byte) []byte { return rsv[:64] })), fault.InvalidSignature},
		"67 ECDSA of 66 bytes":                       {create(altering(func(rsv []byte) []byte { return append(rsv, 0) })), fault.InvalidSignature},
		"67 ECDSA of no bytes":                       {create(altering(func([]byte) []byte { return nil })), fault.InvalidSignature},
		"67 v = 2":                                   {create(withV(func(byte) byte { return 2 })), fault.InvalidSignature},
		"67 v = 26":                                  {create(withV(func(byte) byte { return 26 })), fault.InvalidSignature},
		"67 v = 29":                                  {create(withV(func(byte) byte { return 29 })), fault.InvalidSignature},
		"67 v = 34":                                  {create(withV(func(byte) byte { return 34 })), fault.InvalidSignature},
		"67 r = 0":                                   {create(altering(func(rsv []byte) []byte { clear(rsv[:32]); return rsv })), fault.InvalidSignature},
		"67 s = 0":                                   {create(altering(func(rsv []byte) []byte { clear(rsv[32:64]); return rsv })), fault.InvalidSignature},
		"67 r too large":                             {create(altering(func(rsv []byte) []byte { fill(rsv[:32], 0xff); return rsv })), fault.InvalidSignature},
		"67 s too large":                             {create(altering(func(rsv []byte) []byte { fill(rsv[32:64], 0xff); return rsv })), fault.InvalidSignature},
		"68 v = 0 or 1":                              {create(withV(func(parity byte) byte { return parity })), accepted},
		"68 v = 27 or 28":                            {create(withV(func(parity byte) byte { return 27 + parity })), accepted},
		"68 v = 35 or 36":                            {create(withV(func(parity byte) byte { return 35 + parity })), fault.InvalidSignature},
		"68 v = 254 or 255":                          {create(withV(func(parity byte) byte { return 255 - parity })), fault.InvalidSignature},
		"69 high s with flipped v":                   {create(altering(func(rsv []byte) []byte { rsv = highS(rsv); rsv[64] ^= 27 ^ 28; return rsv })), accepted},
		"69 high s with unflipped v":                 {create(altering(highS)), fault.InvalidIdentityUpdate},
		"70 plain Ed25519 over SHA-512":              {inboxWith(plain), fault.InvalidSignature},
		"70 Ed25519ph without context":               {inboxWith(withoutContext), fault.InvalidSignature},
		"70 Ed25519 signature of 63 bytes":           {inboxWith(shortened(phone)), fault.InvalidSignature},
		"71 installation key of 31 bytes":            {inboxWith(withKey(phone.PublicKey()[:31])), fault.InvalidIdentityUpdate},
		"71 installation key of no bytes":            {inboxWith(withKey(nil)), fault.InvalidIdentityUpdate},
		"71 installation key that is no point":       {inboxWith(withKey(noPoint())), fault.InvalidIdentityUpdate},
		"72 later timestamp, installation signature": {stamped(kit.Register(alice, 0, phone, second), 2*second), fault.InvalidSignature},
		"72 later timestamp, wallet signature":       {stamped(create(alice), 2*second), fault.InvalidIdentityUpdate},
		"73 timestamp within the same second":        {stamped(kit.Register(alice, 0, phone, second), 2*second-1), accepted},
		"109 legacy signature":                       {create(kit.Legacy{Signer: alice}), fault.InvalidIdentityUpdate},
		"109 legacy signature of a new member":       {inboxWith(kit.Legacy{Signer: bob}), fault.InvalidIdentityUpdate},
		"110 identifier kind 0":                      {kit.NewUpdate(kit.InboxID(alice, 0), second).CreateAs(alice, alice.Text(), 0, 0).Update(), accepted},
		"110 unknown identifier kind":                {kit.NewUpdate(kit.InboxID(alice, 0), second).CreateAs(alice, alice.Text(), 77, 0).Update(), accepted},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, _, err := judge(t, story{update: c.update}, nil)
			requireReason(t, c.want, err)
		})
	}
}

// Proves API-043, IDENT-050.
func TestEdgeCasesOfPasskeys(t *testing.T) {
	// client returns a passkey that signs the client data made for a challenge.
	client := func(data func(text string) string) kit.Signer {
		return signer{passkey, func(text string) *associations.Signature { return passkey.Assert([]byte(data(text))) }}
	}
	raw := func(format func(challenge string) string) kit.Signer {
		return client(func(text string) string { return format(kit.Challenge(text)) })
	}
	careless := kit.NewPasskey("alice")
	careless.AuthenticatorData = make([]byte, 37)
	careless.Origin = "https://elsewhere.example"
	der := func(change func(der []byte) []byte) kit.Signer {
		return signer{passkey, func(text string) *associations.Signature {
			s := passkey.Sign(text)
			s.GetPasskey().Signature = change(s.GetPasskey().GetSignature())
			return s
		}}
	}
	cases := map[string]struct {
		by   kit.Signer
		want fault.Reason
	}{
		"76 passkey creates an inbox":   {passkey, accepted},
		"76 compressed passkey creates": {passkey.Compressed(), accepted},
		"78 without origin":             {raw(func(c string) string { return `{"challenge":"` + c + `"}` }), fault.InvalidSignature},
		"78 without challenge":          {raw(func(string) string { return `{"origin":"o"}` }), fault.InvalidSignature},
		"78 Challenge capitalized":      {raw(func(c string) string { return `{"origin":"o","Challenge":"` + c + `"}` }), fault.InvalidSignature},
		"78 Origin capitalized":         {raw(func(c string) string { return `{"Origin":"o","challenge":"` + c + `"}` }), fault.InvalidSignature},
		"78 origin is a number":         {raw(func(c string) string { return `{"origin":1,"challenge":"` + c + `"}` }), fault.InvalidSignature},
		"78 origin is null":             {raw(func(c string) string { return `{"origin":null,"challenge":"` + c + `"}` }), fault.InvalidSignature},
		"78 two challenges":             {raw(func(c string) string { return `{"origin":"o","challenge":"` + c + `","challenge":"` + c + `"}` }), fault.InvalidSignature},
		"78 two origins":                {raw(func(c string) string { return `{"origin":"o","origin":"o","challenge":"` + c + `"}` }), fault.InvalidSignature},
		"78 an array":                   {raw(func(c string) string { return `["o","` + c + `"]` }), fault.InvalidSignature},
		"78 something after the end":    {raw(func(c string) string { return `{"origin":"o","challenge":"` + c + `"}x` }), fault.InvalidSignature},
		"78 a second object":            {raw(func(c string) string { return `{"origin":"o","challenge":"` + c + `"}{}` }), fault.InvalidSignature},
		"78 cut off":                    {raw(func(c string) string { return `{"origin":"o","challenge":"` + c + `"` }), fault.InvalidSignature},
		"78 empty":                      {raw(func(string) string { return `` }), fault.InvalidSignature},
		"78 not UTF-8":                  {raw(func(c string) string { return "{\"origin\":\"\xff\",\"challenge\":\"" + c + `"}` }), fault.InvalidSignature},
		"78 space after the end":        {raw(func(c string) string { return `{"origin":"o","challenge":"` + c + "\"} \n\t" }), accepted},
		"78 other members": {raw(func(c string) string {
			return `{"a":{"origin":1,"b":[1e999,{}]},"origin":"o","z":null,"challenge":"` + c + `"}`
		}), accepted},
		"78 escapes in a name":        {raw(func(c string) string { return `{"\u006frigin":"o","challenge":"` + c + `"}` }), accepted},
		"79 wrong origin and flags 0": {careless, accepted},
		"79 wrong type":               {raw(func(c string) string { return `{"type":"webauthn.create","origin":"","challenge":"` + c + `"}` }), accepted},
		"80 high s":                   {der(highSDER(t)), accepted},
		"80 trailing byte":            {der(func(der []byte) []byte { return append(der, 0) }), fault.InvalidSignature},
		"80 trailing byte inside":     {der(func(der []byte) []byte { der = append(der, 0); der[1]++; return der }), fault.InvalidSignature},
		"80 not DER":                  {der(func([]byte) []byte { return make([]byte, 64) }), fault.InvalidSignature},
		"80 empty":                    {der(func([]byte) []byte { return nil }), fault.InvalidSignature},
		"80 zero numbers":             {der(func([]byte) []byte { return []byte{0x30, 6, 2, 1, 0, 2, 1, 0} }), fault.InvalidSignature},
		"80 long number":              {der(func([]byte) []byte { return append([]byte{0x30, 38, 2, 1, 1, 2, 33, 1}, make([]byte, 32)...) }), fault.InvalidSignature},
		"81 bad point": {signer{passkey, func(text string) *associations.Signature {
			s := passkey.Sign(text)
			s.GetPasskey().PublicKey = append([]byte{4}, make([]byte, 64)...)
			return s
		}}, fault.InvalidSignature},
		"81 bad compressed point": {signer{passkey, func(text string) *associations.Signature {
			s := passkey.Sign(text)
			s.GetPasskey().PublicKey = append([]byte{2}, fill(make([]byte, 32), 0xff)...)
			return s
		}}, fault.InvalidSignature},
		"81 no point": {signer{passkey, func(text string) *associations.Signature {
			s := passkey.Sign(text)
			s.GetPasskey().PublicKey = nil
			return s
		}}, fault.InvalidSignature},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, _, err := judge(t, story{update: create(c.by)}, nil)
			requireReason(t, c.want, err)
		})
	}
	t.Run("77 challenge padded", func(t *testing.T) {
		challenge := kit.Challenge
		by := signer{passkey, func(text string) *associations.Signature {
			return passkey.Assert([]byte(`{"origin":"o","challenge":"` + challenge(text) + `"}`))
		}}
		update := inbox(passkey, 1).Create(by, 0).ChangeRecovery(by, passkey.Text(), asPasskey)
		require.NotZero(t, len(update.Text())%3, "there is padding")
		_, _, err := judge(t, story{update: update.Update()}, nil)
		requireReason(t, accepted, err)

		challenge = func(text string) string { return base64.URLEncoding.EncodeToString([]byte(text)) }
		_, _, err = judge(t, story{update: update.Update()}, nil)
		requireReason(t, fault.InvalidSignature, err)
	})
	t.Run("81 compressed identifier, uncompressed signature", func(t *testing.T) {
		small := passkey.Compressed()
		update := kit.NewUpdate(kit.InboxID(small, 0), second).CreateAs(passkey, small.Text(), asPasskey, 0).Update()
		_, _, err := judge(t, story{update: update}, nil)
		requireReason(t, fault.InvalidIdentityUpdate, err)
	})
	t.Run("76 inbox id from the key in hex, upper case accepted", func(t *testing.T) {
		update := kit.NewUpdate(kit.InboxID(passkey, 9), second).CreateAs(passkey, string(upper(passkey.Text())), asPasskey, 9).Update()
		_, after, err := judge(t, story{update: update}, nil)
		require.NoError(t, err)
		require.Equal(t, association.InboxID(hex.EncodeToString(passkey.Public), 9), after.InboxID())
	})
}

// inboxWith creates alice's inbox and adds an installation.
func inboxWith(installation kit.Signer) *associations.IdentityUpdate {
	return kit.NewUpdate(kit.InboxID(alice, 0), second).Create(alice, 0).Add(alice, installation).Update()
}

func shortened(i *kit.Installation) kit.Signer {
	return signer{i, func(text string) *associations.Signature {
		return i.Wrap(i.Sign(text).GetInstallationKey().GetBytes()[:63])
	}}
}

func withKey(key []byte) kit.Signer {
	return signer{phone, func(text string) *associations.Signature {
		s := phone.Sign(text)
		s.GetInstallationKey().PublicKey = key
		return s
	}}
}

// noPoint is 32 bytes that are no Edwards point.
func noPoint() []byte {
	key := make([]byte, 32)
	key[0] = 2
	return key
}

func fill(b []byte, value byte) []byte {
	for i := range b {
		b[i] = value
	}
	return b
}

// highSDER returns the other of the two signatures that a P-256 signature has.
func highSDER(t *testing.T) func(der []byte) []byte {
	return func(der []byte) []byte {
		t.Helper()
		var numbers struct{ R, S *big.Int }
		_, err := asn1.Unmarshal(der, &numbers)
		require.NoError(t, err)
		if other := new(big.Int).Sub(elliptic.P256().Params().N, numbers.S); other.Cmp(numbers.S) > 0 {
			numbers.S = other
		}
		high, err := asn1.Marshal(numbers)
		require.NoError(t, err)
		return high
	}
}

// highSAndV is the other form of the same signature: whose key it is does not change.
func highSAndV(rsv []byte) []byte {
	rsv = highS(rsv)
	rsv[64] ^= 27 ^ 28
	return rsv
}

// otherS returns the passkey signing with the other s, which verifies as well.
func otherS(t *testing.T) kit.Signer {
	return signer{passkey, func(text string) *associations.Signature {
		s := passkey.Sign(text)
		s.GetPasskey().Signature = otherSOf(t, s.GetPasskey().GetSignature())
		return s
	}}
}

func otherSOf(t require.TestingT, der []byte) []byte {
	var numbers struct{ R, S *big.Int }
	_, err := asn1.Unmarshal(der, &numbers)
	require.NoError(t, err)
	numbers.S.Sub(elliptic.P256().Params().N, numbers.S)
	other, err := asn1.Marshal(numbers)
	require.NoError(t, err)
	return other
}
