package association_test

import (
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

func BenchmarkReplay256(b *testing.B) {
	// By passkey there is no signer to recover: what is left is our own work.
	holder := kit.NewPasskey("bench")
	byPasskey := updates{kit.Register(holder, 0, kit.NewInstallation("0"), second)}
	for i := uint64(2); i <= 256; i++ {
		byPasskey = append(byPasskey, inbox(holder, i).Revoke(holder, phone.Member()).Update())
	}
	for name, history := range map[string]updates{"wallet": kit.History("bench", 256), "passkey": byPasskey} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, err := association.Replay(history)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkRecover256 is the yardstick for a replay by wallet, which has to
// recover one signer per update.
func BenchmarkRecover256(b *testing.B) {
	hash := kit.PersonalHash("bench")
	rsv := alice.SignHash(hash)
	compact := append([]byte{rsv[64]}, rsv[:64]...)
	b.ReportAllocs()
	for b.Loop() {
		for range 256 {
			_, _, err := ecdsa.RecoverCompact(compact, hash[:])
			require.NoError(b, err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	cases := map[string]*associations.IdentityUpdate{
		"wallet":   kit.Register(alice, 0, phone, second),
		"passkey":  kit.Register(passkey, 0, phone, second),
		"contract": kit.Register(kit.NewContractWallet("safe", "eip155:1", 7), 0, phone, second),
	}
	for name, update := range cases {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				prepared, err := association.Prepare(update)
				require.NoError(b, err)
				_, err = prepared.Verify(b.Context(), kit.AcceptAll{})
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkApplyAfter256(b *testing.B) {
	state, err := association.Replay(kit.History("bench", 256))
	require.NoError(b, err)
	wallet := kit.NewWallet("bench")
	prepared, err := association.Prepare(inbox(wallet, 1000).Add(wallet, phone).Update())
	require.NoError(b, err)
	verified, err := prepared.Verify(b.Context(), nil)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_, err := state.Apply(verified)
		require.NoError(b, err)
	}
}
