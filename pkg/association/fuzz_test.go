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

// FuzzIdentityUpdate takes any bytes through all three steps, on an empty inbox
// and on one with a history.
func FuzzIdentityUpdate(f *testing.F) {
	for _, r := range recordings(f) {
		encoded, err := proto.Marshal(r.update)
		require.NoError(f, err)
		f.Add(encoded)
	}
	_, _, public := publicUpdates(f)
	contract := kit.NewContractWallet("safe", "eip155:1", 7)
	for _, update := range append(public, kit.Register(contract, 0, phone, second), create(kit.Legacy{Signer: alice})) {
		encoded, err := proto.Marshal(update)
		require.NoError(f, err)
		f.Add(encoded)
	}
	existing, err := association.Replay(registered())
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, encoded []byte) {
		update := new(associations.IdentityUpdate)
		if proto.Unmarshal(encoded, update) != nil {
			return
		}
		prepared, err := association.Prepare(update)
		if err != nil {
			requireClassified(t, err)
			return
		}
		verified, err := prepared.Verify(t.Context(), kit.AcceptAll{})
		if err != nil {
			requireClassified(t, err)
			return
		}
		for _, before := range []*association.State{new(association.State), existing} {
			members := before.Members()
			after, err := before.Apply(verified)
			require.Equal(t, members, before.Members())
			if err != nil {
				requireClassified(t, err)
				continue
			}
			require.Equal(t, update.GetInboxId(), after.InboxID())
			requireLookups(t, before, after)
			if before != existing {
				replayed, err := association.Replay(updates{update})
				require.NoError(t, err)
				require.Equal(t, after, replayed)
			}
		}
	})
}

func requireClassified(t *testing.T, err error) {
	t.Helper()
	var failure *fault.Error
	require.ErrorAs(t, err, &failure)
	require.Equal(t, fault.Invalid, failure.Kind, err)
	require.NotZero(t, failure.Reason)
}

// requireLookups says that whatever enters the projection can be looked up.
func requireLookups(t *testing.T, before, after *association.State) {
	t.Helper()
	added, removed := association.Changes(before, after)
	for _, i := range append(added, removed...) {
		kind, key, ok := i.LookupKey()
		require.True(t, ok)
		found, ok := association.LookupKey(kind, i.Text())
		require.True(t, ok)
		require.Equal(t, key, found)
	}
}
