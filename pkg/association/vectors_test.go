package association_test

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// publicUpdates reads testdata/public_updates.txt.
func publicUpdates(t testing.TB) (names, inboxIDs []string, all updates) {
	t.Helper()
	file, err := os.ReadFile("testdata/public_updates.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(file)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		require.Len(t, fields, 3)
		encoded, err := hex.DecodeString(fields[2])
		require.NoError(t, err)
		update := new(associations.IdentityUpdate)
		require.NoError(t, proto.Unmarshal(encoded, update))
		names, inboxIDs, all = append(names, fields[0]), append(inboxIDs, fields[1]), append(all, update)
	}
	require.Len(t, all, 6)
	return names, inboxIDs, all
}

func TestPublicUpdates(t *testing.T) {
	names, inboxIDs, all := publicUpdates(t)
	histories := map[string]updates{}
	for i, update := range all {
		t.Run(names[i], func(t *testing.T) {
			_, after, err := judge(t, story{histories[inboxIDs[i]], update}, nil)
			if names[i] == "row-8" { // signed by legacy keys
				requireReason(t, fault.InvalidIdentityUpdate, err)
				after, err = association.Replay(updates{update})
			}
			require.NoError(t, err)
			require.Equal(t, inboxIDs[i], after.InboxID())
			histories[inboxIDs[i]] = append(histories[inboxIDs[i]], update)
		})
	}
	t.Run("text of row 1", func(t *testing.T) {
		text, err := association.SignatureText(all[0])
		require.NoError(t, err)
		require.Equal(t, `XMTP : Authenticate to inbox

Inbox ID: 01177004c63739c1298c8edbbc09b2017999e1368b972307cd3e167b1bcb23c6
Current time: 2024-05-31T22:28:45Z

- Create inbox
  (Owner: 0xf0ea7663233f99d0c12370671abbb6cca980a490)
- Grant messaging access to app
  (ID: a771e3e5ff97f6ca754ffd81171d1032059af0372335ed546999ac9e17fe46b5)

For more info: https://xmtp.org/signatures`, text)
	})
}

func TestSignatureTextOfEveryAction(t *testing.T) {
	const address = "0x1234567890abcdef1234567890abcdef12345678"
	const another = "0x4567890abcdef1234567890abcdef12345678123"
	installation := &associations.MemberIdentifier{Kind: &associations.MemberIdentifier_InstallationPublicKey{InstallationPublicKey: []byte{1, 2, 3}}}
	passkeyMember := &associations.MemberIdentifier{Kind: &associations.MemberIdentifier_Passkey{Passkey: &associations.Passkey{Key: []byte{4, 5, 0xab}}}}
	update := kit.NewUpdate(association.InboxID(address, 0), 12).
		CreateAs(alice, address, eth, 0).
		AddAs(alice, bob, kit.EthereumMember(another)).
		AddAs(alice, phone, installation).
		AddAs(alice, passkey, passkeyMember).
		Revoke(alice, kit.EthereumMember(another)).
		Revoke(alice, installation).
		Revoke(alice, passkeyMember).
		ChangeRecovery(alice, "0x7890abcdef1234567890abcdef12345678123456", eth).
		ChangeRecovery(alice, "0405AB", asPasskey).
		Update()
	text, err := association.SignatureText(update)
	require.NoError(t, err)
	require.Equal(t, `XMTP : Authenticate to inbox

Inbox ID: fcd18d86276d7a99fe522dba9660c420f03c8648785ada7c5daae232a3df77a9
Current time: 1970-01-01T00:00:00Z

- Create inbox
  (Owner: 0x1234567890abcdef1234567890abcdef12345678)
- Link address to inbox
  (Address: 0x4567890abcdef1234567890abcdef12345678123)
- Grant messaging access to app
  (ID: 010203)
- Link passkey to inbox
  (Passkey: 0405ab)
- Unlink address from inbox
  (Address: 0x4567890abcdef1234567890abcdef12345678123)
- Revoke messaging access from app
  (ID: 010203)
- Unlink passkey from inbox
  (Passkey: 0405ab)
- Change inbox recovery address
  (Address: 0x7890abcdef1234567890abcdef12345678123456)
- Change inbox recovery address
  (Address: 0405ab)

For more info: https://xmtp.org/signatures`, text)
}

func TestSignatureTextOfNoActionAndOddTimes(t *testing.T) {
	for ns, want := range map[uint64]string{
		0:         "1970-01-01T00:00:00Z",
		12:        "1970-01-01T00:00:00Z",
		1 << 63:   "1677-09-21T00:12:43Z",
		1<<63 - 1: "2262-04-11T23:47:16Z",
		1<<64 - 1: "1969-12-31T23:59:59Z",
	} {
		text, err := association.SignatureText(&associations.IdentityUpdate{InboxId: "As Received", ClientTimestampNs: ns})
		require.NoError(t, err)
		require.Equal(t, "XMTP : Authenticate to inbox\n\nInbox ID: As Received\nCurrent time: "+want+
			"\n\n\n\nFor more info: https://xmtp.org/signatures", text)
	}
	_, err := association.SignatureText(&associations.IdentityUpdate{Actions: []*associations.IdentityAction{{}}})
	requireReason(t, fault.InvalidIdentityUpdate, err)
}

func TestWalletAddress(t *testing.T) {
	key, err := hex.DecodeString("90b7388a7427358cb7fc7e9042805b1942eae47ee783e627a989719da35e76fb")
	require.NoError(t, err)
	wallet := kit.Wallet{Key: secp256k1.PrivKeyFromBytes(key)}
	require.Equal(t, "0x34dd95109b587ca90778cde5e2dd87e022453699", wallet.Address())
	_, after, err := judge(t, story{update: create(&wallet)}, nil)
	require.NoError(t, err)
	require.Equal(t, identifiers(&wallet), after.Members())
}
