package associationtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
)

func TestHistoryIsValidAndTheSameForTheSameSeed(t *testing.T) {
	history := associationtest.History("seed", 9)
	again := associationtest.History("seed", 9)
	other := associationtest.History("another", 9)
	state := new(association.State)
	for i, wire := range history {
		require.True(t, proto.Equal(wire, again[i]))
		require.False(t, proto.Equal(wire, other[i]))
		update, err := association.Prepare(wire)
		require.NoError(t, err)
		verified, err := update.Verify(t.Context(), nil)
		require.NoError(t, err)
		state, err = state.Apply(verified)
		require.NoError(t, err)
	}
	// Each fourth update takes back the one before.
	require.Len(t, state.Members(), 1+9-2*2)
	require.Equal(t, associationtest.InboxID(associationtest.NewWallet("seed"), 0), state.InboxID())
}

func TestEverySignerSignsTheSameTwice(t *testing.T) {
	wallet := associationtest.NewWallet("seed")
	for name, signer := range map[string]associationtest.Signer{
		"wallet":       wallet,
		"contract":     associationtest.NewContractWallet("seed", "eip155:1", 1),
		"installation": associationtest.NewInstallation("seed"),
		"passkey":      associationtest.NewPasskey("seed"),
		"compressed":   associationtest.NewPasskey("seed").Compressed(),
	} {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, signer.Text())
			require.True(t, proto.Equal(signer.Sign("text"), signer.Sign("text")))
			require.False(t, proto.Equal(signer.Sign("text"), signer.Sign("another")))
			if signer.Kind() == 0 { // an installation creates no inbox
				signer, installation := wallet, signer.(*associationtest.Installation)
				requireGood(t, associationtest.NewUpdate(associationtest.InboxID(signer, 0), 1).Create(signer, 0).Add(signer, installation))
				return
			}
			requireGood(t, associationtest.NewUpdate(associationtest.InboxID(signer, 0), 1).Create(signer, 0))
		})
	}
}

func requireGood(t *testing.T, b *associationtest.Builder) {
	t.Helper()
	update, err := association.Prepare(b.Update())
	require.NoError(t, err)
	verified, err := update.Verify(t.Context(), associationtest.AcceptAll{})
	require.NoError(t, err)
	_, err = new(association.State).Apply(verified)
	require.NoError(t, err)
}
