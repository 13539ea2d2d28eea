package association_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// recording is what the manifest of the recorded session knows of an update.
type recording struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	File   string `json:"file"`
	Expect struct {
		InboxID       string           `json:"inbox_id"`
		IndexInInbox  int              `json:"index_in_inbox"`
		SignatureText string           `json:"signature_text"`
		NeedsChain    bool             `json:"needs_chain"`
		Actions       []recordedAction `json:"actions"`
		StateAfter    struct {
			Members            []string `json:"members"`
			RecoveryIdentifier string   `json:"recovery_identifier"`
		} `json:"state_after"`
	} `json:"expect"`

	update *associations.IdentityUpdate
}

type recordedAction struct {
	Initial  *recordedSignature `json:"initial_identifier_signature"`
	Existing *recordedSignature `json:"existing_member_signature"`
	New      *recordedSignature `json:"new_member_signature"`
	Recovery *recordedSignature `json:"recovery_identifier_signature"`
	Change   *recordedSignature `json:"existing_recovery_identifier_signature"`
}

type recordedSignature struct {
	Signer    string `json:"signer"`
	Type      string `json:"type"`
	AccountID string `json:"account_id"`
	Block     uint64 `json:"block_number"`
	Hash      string `json:"hash"`
	Signature string `json:"signature"`
}

// signatures lists those of the update in wire order.
func (r *recording) signatures() []*recordedSignature {
	var all []*recordedSignature
	for _, a := range r.Expect.Actions {
		for _, s := range []*recordedSignature{a.Initial, a.Existing, a.New, a.Recovery, a.Change} {
			if s != nil {
				all = append(all, s)
			}
		}
	}
	return all
}

const recordingFolder = "../testdata/real-client"

// recordings returns the recorded identity updates in order of arrival.
func recordings(t testing.TB) []*recording {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join(recordingFolder, "manifest.json"))
	require.NoError(t, err)
	var all, updates []*recording
	require.NoError(t, json.Unmarshal(manifest, &all))
	for _, r := range all {
		if r.Kind != "identity_update" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(recordingFolder, r.File))
		require.NoError(t, err)
		r.update = new(associations.IdentityUpdate)
		require.NoError(t, proto.Unmarshal(data, r.update))
		updates = append(updates, r)
	}
	require.Len(t, updates, 45)
	return updates
}

// describe names an identifier as the manifest does.
func describe(i association.Identifier) string {
	kind := map[association.MemberKind]string{
		association.Ethereum:     "ethereum",
		association.Passkey:      "passkey",
		association.Installation: "installation",
	}[i.Kind]
	return kind + ":" + i.Text()
}

func describeAll(identifiers []association.Identifier) []string {
	described := make([]string, 0, len(identifiers))
	for _, i := range identifiers {
		described = append(described, describe(i))
	}
	return described
}

// recorder is a verifier that says yes and keeps what it was asked.
type recorder struct {
	mu    sync.Mutex
	asked []association.ContractSignature
}

func (r *recorder) VerifyContract(_ context.Context, s association.ContractSignature) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, s)
	return true, nil
}

func TestRecordedUpdatesLeadToTheRecordedStates(t *testing.T) {
	states := map[string]*association.State{}
	histories := map[string][]*associations.IdentityUpdate{}
	for _, r := range recordings(t) {
		t.Run(r.ID, func(t *testing.T) {
			inbox := r.Expect.InboxID
			require.Len(t, histories[inbox], r.Expect.IndexInInbox)
			before := states[inbox]
			if before == nil {
				before = new(association.State)
			}

			update, err := association.Prepare(r.update)
			require.NoError(t, err)
			require.Equal(t, r.Expect.SignatureText, update.SignatureText())
			var verifier recorder
			verified, err := update.Verify(t.Context(), &verifier)
			require.NoError(t, err)
			var signers []string
			for _, signer := range verified.Signers() {
				signers = append(signers, describe(signer))
			}
			var wantSigners []string
			for _, s := range r.signatures() {
				wantSigners = append(wantSigners, s.Signer)
			}
			require.Equal(t, wantSigners, signers)
			requireAsked(t, r, verifier.asked)

			after, err := before.Apply(verified)
			require.NoError(t, err)
			requireState(t, r, after)
			states[inbox] = after
			histories[inbox] = append(histories[inbox], r.update)

			replayed, err := association.Replay(histories[inbox])
			require.NoError(t, err)
			requireState(t, r, replayed)
			require.Equal(t, after, replayed)
		})
	}
}

func requireState(t *testing.T, r *recording, state *association.State) {
	t.Helper()
	require.ElementsMatch(t, r.Expect.StateAfter.Members, describeAll(state.Members()))
	require.Equal(t, r.Expect.StateAfter.RecoveryIdentifier, describe(state.RecoveryIdentifier()))
	require.Equal(t, r.Expect.InboxID, state.InboxID())
}

// requireAsked says that the verifier was asked about exactly the recorded
// contract-wallet signatures, each once.
func requireAsked(t *testing.T, r *recording, asked []association.ContractSignature) {
	t.Helper()
	var want []recordedSignature
	for _, s := range r.signatures() {
		if s.Type == "erc_6492" && !slices.ContainsFunc(want, func(w recordedSignature) bool { return w == *s }) {
			want = append(want, *s)
		}
	}
	require.Equal(t, r.Expect.NeedsChain, len(want) > 0)
	require.Len(t, asked, len(want))
	for i, s := range asked {
		require.Equal(t, want[i].AccountID, s.AccountID)
		require.Equal(t, want[i].Block, s.BlockNumber)
		require.Equal(t, want[i].Hash, hex.EncodeToString(s.Hash[:]))
		require.Equal(t, want[i].Signature, hex.EncodeToString(s.Signature))
	}
}

// TestEveryFlippedSignatureByteIsRefused flips each byte of each signature, and
// of what stands beside it, in all recorded updates.
func TestEveryFlippedSignatureByteIsRefused(t *testing.T) {
	states := map[string]*association.State{}
	for _, r := range recordings(t) {
		t.Run(r.ID, func(t *testing.T) {
			before := states[r.Expect.InboxID]
			if before == nil {
				before = new(association.State)
			}
			// A contract wallet accepts the recorded bytes and no others.
			recorded := map[string]bool{}
			for _, s := range r.signatures() {
				recorded[s.AccountID+s.Hash+s.Signature] = true
			}
			verifier := associationtest.VerifierFunc(func(_ context.Context, s association.ContractSignature) (bool, error) {
				return recorded[s.AccountID+hex.EncodeToString(s.Hash[:])+hex.EncodeToString(s.Signature)], nil
			})
			apply := func() (*association.State, error) {
				update, err := association.Prepare(r.update)
				if err != nil {
					return nil, err
				}
				verified, err := update.Verify(t.Context(), verifier)
				if err != nil {
					return nil, err
				}
				return before.Apply(verified)
			}
			for n, s := range signaturesOf(r.update) {
				for name, bytes := range signedBytes(s) {
					step := 1
					if name == "client data" || name == "authenticator data" {
						step = 7 // long, and each byte takes a verification
					}
					for i := 0; i < len(bytes); i += step {
						mask := byte(1) << (i % 8)
						bytes[i] ^= mask
						_, err := apply()
						bytes[i] ^= mask
						require.Error(t, err, "signature %d, %s, byte %d", n, name, i)
						failure := fault.Of(err)
						require.Equal(t, fault.Invalid, failure.Kind)
						requireFlipReason(t, s, name, failure)
					}
				}
			}
			after, err := apply()
			require.NoError(t, err)
			states[r.Expect.InboxID] = after
		})
	}
}

// requireFlipReason: a flipped ECDSA signature mostly recovers to a stranger,
// the others do not verify.
func requireFlipReason(t *testing.T, s *associations.Signature, name string, failure *fault.Error) {
	t.Helper()
	switch {
	case s.GetErc_191() != nil:
		require.Contains(t, []fault.Reason{fault.InvalidSignature, fault.InvalidIdentityUpdate}, failure.Reason)
	case strings.HasPrefix(name, "installation public key"):
		// No longer a point: structure. Else: no longer verifies.
		require.Contains(t, []fault.Reason{fault.InvalidSignature, fault.InvalidIdentityUpdate}, failure.Reason)
	default:
		require.Equal(t, fault.InvalidSignature, failure.Reason)
	}
}

func signedBytes(s *associations.Signature) map[string][]byte {
	return map[string][]byte{
		"ecdsa":                   s.GetErc_191().GetBytes(),
		"contract":                s.GetErc_6492().GetSignature(),
		"installation":            s.GetInstallationKey().GetBytes(),
		"installation public key": s.GetInstallationKey().GetPublicKey(),
		"passkey":                 s.GetPasskey().GetSignature(),
		"passkey public key":      s.GetPasskey().GetPublicKey(),
		"authenticator data":      s.GetPasskey().GetAuthenticatorData(),
		"client data":             s.GetPasskey().GetClientDataJson(),
	}
}

func signaturesOf(update *associations.IdentityUpdate) []*associations.Signature {
	var all []*associations.Signature
	for _, a := range update.GetActions() {
		for _, s := range []*associations.Signature{
			a.GetCreateInbox().GetInitialIdentifierSignature(),
			a.GetAdd().GetExistingMemberSignature(),
			a.GetAdd().GetNewMemberSignature(),
			a.GetRevoke().GetRecoveryIdentifierSignature(),
			a.GetChangeRecoveryAddress().GetExistingRecoveryIdentifierSignature(),
		} {
			if s != nil {
				all = append(all, s)
			}
		}
	}
	return all
}
