package e2e_test

import (
	"context"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

const (
	eth           = associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM
	badUpdate     = backendv1.PublishError_REASON_INVALID_IDENTITY_UPDATE
	badSignature  = backendv1.PublishError_REASON_INVALID_SIGNATURE
	permissive    = "eip155:31337" // a chain whose contracts accept everything
	permissiveNow = 1000           // its newest block
)

// world is a backend with a client, and what is stored in it.
type world struct {
	t         *testing.T
	publisher backendv1.PublishServiceClient
	db        *pgx.Conn
	seconds   uint64
	inboxes   int
}

// newWorld starts a backend that also knows a chain of which each contract says yes.
func newWorld(t *testing.T) *world {
	t.Helper()
	chain := httptest.NewServer(http.HandlerFunc(sayYes))
	t.Cleanup(chain.Close)
	s, connection := startWith(t, permissive+"="+chain.URL)
	db, err := pgx.Connect(t.Context(), s.Endpoints.PrimaryURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	return &world{t: t, publisher: backendv1.NewPublishServiceClient(connection), db: db}
}

// sayYes is a chain: a block a second, the newest an hour after the first.
func sayYes(w http.ResponseWriter, r *http.Request) {
	var request struct {
		ID     json.RawMessage   `json:"id"`
		Method string            `json:"method"`
		Params []json.RawMessage `json:"params"`
	}
	_ = json.NewDecoder(r.Body).Decode(&request)
	var result any = "0x01"
	if request.Method == "eth_getBlockByNumber" {
		var number uint64 = permissiveNow
		if name := strings.Trim(string(request.Params[0]), `"`); name != "latest" {
			_, _ = fmt.Sscanf(name, "0x%x", &number)
		}
		result = map[string]string{"number": fmt.Sprintf("0x%x", number), "timestamp": fmt.Sprintf("0x%x", 4*number)}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": request.ID, "result": result})
}

// as is the world of a subtest.
func (w *world) as(t *testing.T) *world {
	narrow := *w
	narrow.t = t
	return &narrow
}

func (w *world) publish(update *associations.IdentityUpdate) error {
	_, err := w.publisher.Publish(w.t.Context(), &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{testkit.Identity(update)}})
	return err
}

func (w *world) accept(update *associations.IdentityUpdate) *associations.IdentityUpdate {
	w.t.Helper()
	require.NoError(w.t, w.publish(update))
	return update
}

func (w *world) stored() (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow(w.t.Context(), "SELECT count(*) FROM envelopes").Scan(&n))
	return n
}

// refuse requires that an update is refused for a reason and leaves nothing behind.
func (w *world) refuse(update *associations.IdentityUpdate, reason backendv1.PublishError_Reason) {
	w.t.Helper()
	before := w.stored()
	refused := status.Convert(w.publish(update))
	require.Equal(w.t, codes.InvalidArgument, refused.Code(), refused.Message())
	require.Len(w.t, refused.Details(), 1)
	detail, ok := refused.Details()[0].(*backendv1.PublishError)
	require.True(w.t, ok)
	require.Equal(w.t, reason, detail.GetReason(), refused.Message())
	require.Zero(w.t, detail.GetIndex())
	require.Equal(w.t, before, w.stored())
}

// owner is a registered inbox.
type owner struct {
	*kit.Wallet
	phone *kit.Installation
	inbox string
}

func (w *world) owner() owner {
	w.t.Helper()
	w.inboxes++
	o := owner{Wallet: kit.NewWallet(fmt.Sprintf("e2e owner %s %d", w.t.Name(), w.inboxes)), phone: kit.NewInstallation("e2e phone " + w.t.Name())}
	o.inbox = kit.InboxID(o.Wallet, 0)
	w.accept(kit.Register(o.Wallet, 0, o.phone, 1_000_000_000))
	return o
}

// next begins an update of an inbox at a later time.
func (w *world) next(o owner) *kit.Builder {
	w.seconds++
	return kit.NewUpdate(o.inbox, (1000+w.seconds)*1_000_000_000)
}

// altered is a copy of an update with each wallet signature, and the free text, changed.
func altered(update *associations.IdentityUpdate, change func(rsv []byte)) *associations.IdentityUpdate {
	update = proto.CloneOf(update)
	for _, a := range update.GetActions() {
		if add := a.GetAdd(); add != nil {
			add.RelyingParty = proto.String("another")
		}
		for _, s := range []*associations.Signature{
			a.GetCreateInbox().GetInitialIdentifierSignature(), a.GetAdd().GetExistingMemberSignature(), a.GetAdd().GetNewMemberSignature(),
			a.GetRevoke().GetRecoveryIdentifierSignature(), a.GetChangeRecoveryAddress().GetExistingRecoveryIdentifierSignature(),
		} {
			if rsv := s.GetErc_191().GetBytes(); len(rsv) == 65 {
				change(rsv)
			}
			if passkey := s.GetPasskey(); passkey != nil {
				passkey.Signature = otherS(passkey.GetSignature())
			}
		}
	}
	return update
}

func low(rsv []byte)         { rsv[64] -= 27 }
func asIs([]byte)            {}
func of(v byte) func([]byte) { return func(rsv []byte) { rsv[64] = v + (rsv[64] - 27) } }

// highS is the other signature of the same key.
func highS(rsv []byte) {
	order, _ := new(big.Int).SetString("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", 16)
	order.Sub(order, new(big.Int).SetBytes(rsv[32:64])).FillBytes(rsv[32:64])
	rsv[64] ^= 27 ^ 28
}

func otherS(der []byte) []byte {
	var numbers struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &numbers); err != nil {
		panic(err)
	}
	numbers.S.Sub(elliptic.P256().Params().N, numbers.S)
	other, err := asn1.Marshal(numbers)
	if err != nil {
		panic(err)
	}
	return other
}

func checksummed(address string) string { return "0x" + strings.ToUpper(address[2:]) }

// TestAttacksOnInboxes tries through the gateway what was once done to a backend
// whose rules for identity updates were weaker.
//
// Proves IDENT-001, IDENT-013, IDENT-030, IDENT-040, IDENT-050, IDENT-060,
// IDENT-062.
func TestAttacksOnInboxes(t *testing.T) {
	w := newWorld(t)
	stranger := kit.NewWallet("e2e stranger")
	attacks := map[string]func(*world){
		"1 updates without actions": func(w *world) {
			o := w.owner()
			for range 5 {
				w.refuse(w.next(o).Update(), badUpdate)
			}
			empty := w.next(o).Update()
			empty.Actions = []*associations.IdentityAction{{}}
			w.refuse(empty, badUpdate)
			empty.Actions = make([]*associations.IdentityAction, 500_000)
			for i := range empty.Actions {
				empty.Actions[i] = &associations.IdentityAction{}
			}
			w.refuse(empty, badUpdate)
			w.accept(w.next(o).Revoke(o, o.phone.Member()).Update())
		},
		"2 a removed wallet added again": func(w *world) {
			o, b := w.owner(), kit.NewWallet("e2e b")
			add := w.accept(w.next(o).Add(o, b).Update())
			w.accept(w.next(o).Revoke(o, b.Member()).Update())
			for name, change := range map[string]func([]byte){"free text": asIs, "v of 0": low, "high s": highS} {
				w.t.Log(name)
				w.refuse(altered(add, change), badUpdate)
			}
			w.refuse(altered(add, of(35)), badSignature)
			w.refuse(altered(add, of(37)), badSignature)
			w.requireMember(b.Text(), eth, false)
		},
		"2 a removed passkey added again": func(w *world) {
			o, b := w.owner(), kit.NewPasskey("e2e b")
			add := w.accept(w.next(o).Add(o.phone, b).Update())
			w.accept(w.next(o).Revoke(o, b.Member()).Update())
			replayed := altered(add, asIs)
			text := kit.NewUpdate(o.inbox, add.GetClientTimestampNs()).Add(o.phone, b).Text()
			replayed.Actions[0].GetAdd().ExistingMemberSignature = o.phone.SignAgain(text)
			w.refuse(replayed, badUpdate)
			w.requireMember(b.Text(), associations.IdentifierKind_IDENTIFIER_KIND_PASSKEY, false)
		},
		"3 a removed device signs anew": func(w *world) {
			o, d := w.owner(), kit.NewInstallation("e2e d")
			at := w.next(o).Add(o, d)
			add := w.accept(at.Update())
			text := at.Text()
			w.accept(w.next(o).Revoke(o, d.Member()).Update())
			replayed := altered(add, low)
			replayed.Actions[0].GetAdd().NewMemberSignature = d.SignAgain(text)
			w.refuse(replayed, badUpdate)
		},
		"4 an old removal replayed": func(w *world) {
			o := w.owner()
			removal := w.accept(w.next(o).Revoke(o, o.phone.Member()).Update())
			w.accept(w.next(o).Add(o, o.phone).Update())
			w.refuse(altered(removal, low), badUpdate)
			w.refuse(altered(removal, highS), badUpdate)
			w.refuse(altered(removal, of(35)), badSignature)
			w.accept(w.next(o).Add(o.phone, kit.NewWallet("e2e by the phone, which is there")).Update())
		},
		"5 an old change of recovery replayed": func(w *world) {
			o, n := w.owner(), kit.NewWallet("e2e n")
			change := w.accept(w.next(o).ChangeRecovery(o, n.Text(), eth).Update())
			w.accept(w.next(o).ChangeRecovery(n, o.Text(), eth).Update())
			w.refuse(altered(change, low), badUpdate)
			w.refuse(altered(change, highS), badUpdate)
			w.refuse(altered(change, of(255-27)), badSignature)
			w.accept(w.next(o).Revoke(o, o.phone.Member()).Update())
		},
		"6 one add many times": func(w *world) {
			o, d := w.owner(), kit.NewInstallation("e2e d")
			add := w.accept(w.next(o).Add(o, d).Update())
			for v := 35; v < 255; v += 2 {
				w.refuse(altered(add, of(byte(v))), badSignature)
			}
			w.refuse(altered(add, low), badUpdate)
		},
		"7 a contract wallet signs at block 0": func(w *world) {
			o := w.owner()
			safe := kit.NewContractWallet("e2e safe", permissive, permissiveNow)
			w.accept(w.next(o).Add(o.phone, safe).Update())
			for _, block := range []uint64{0, permissiveNow - 451, permissiveNow + 1} {
				safe.Block = block
				w.refuse(w.next(o).Add(safe, kit.NewInstallation("e2e by the former owner")).Update(), badSignature)
			}
			safe.Block = permissiveNow - 450 // 1,800 s
			w.accept(w.next(o).Add(safe, kit.NewInstallation("e2e by the owner")).Update())
		},
		"8 recovery in mixed case": func(w *world) {
			o := w.owner()
			w.refuse(w.next(o).ChangeRecovery(o, checksummed(stranger.Text()), eth).Update(), badUpdate)
			w.refuse(w.next(o).Revoke(o, kit.EthereumMember(checksummed(o.Text()))).Update(), badUpdate)
			w.refuse(w.next(o).AddAs(o, stranger, kit.EthereumMember(checksummed(stranger.Text()))).Update(), badUpdate)
			w.refuse(kit.NewUpdate(o.inbox, 1).CreateAs(stranger, checksummed(stranger.Text()), eth, 0).Update(), badUpdate)
			w.accept(w.next(o).Revoke(o, o.phone.Member()).Update())
		},
		"9 a device added a second time": func(w *world) {
			o, b, d := w.owner(), kit.NewWallet("e2e second"), kit.NewInstallation("e2e d")
			w.accept(w.next(o).Add(o, b).Add(b, d).Update())
			w.refuse(w.next(o).Add(o, d).Update(), badUpdate)
			w.accept(w.next(o).Revoke(o, b.Member()).Update())
			// It went with b, so that it can be added anew.
			w.accept(w.next(o).Add(o, d).Update())
		},
		"10 accounts that are none of Ethereum": func(w *world) {
			o := w.owner()
			safe := kit.NewContractWallet("e2e safe of 10", permissive, permissiveNow)
			for _, account := range []string{
				"cosmos:cosmoshub-3:cosmos1t2uflqwqe0fsj0shcfkrvpukewcw40yjj6hdc0", "eip155:031337:" + safe.Contract,
				"eip155:+31337:" + safe.Contract, "eip155:18446744073709551616:" + safe.Contract, permissive + ":" + safe.Contract[2:], "EIP155:31337:" + safe.Contract,
			} {
				safe.AccountID = account
				w.refuse(w.next(o).Add(o.phone, safe).Update(), badSignature)
			}
			safe.AccountID = "eip155:5:" + safe.Contract // a chain that is not configured
			require.Equal(w.t, codes.Unavailable, status.Code(w.publish(w.next(o).Add(o.phone, safe).Update())))
		},
		"a retired kind of signature": func(w *world) {
			o := w.owner()
			w.refuse(w.next(o).Add(o.phone, kit.Legacy{Signer: stranger}).Update(), badUpdate)
		},
	}
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) { attack(w.as(t)) })
	}
	t.Run("key packages of unusual shapes are taken", func(t *testing.T) { unusualKeyPackages(w.as(t)) })
	t.Run("a log of older rules", func(t *testing.T) { oldLog(w.as(t)) })
}

// requireMember says whether an identifier resolves to an inbox, on the primary, which no
// replica lags behind.
func (w *world) requireMember(identifier string, kind associations.IdentifierKind, want bool) {
	w.t.Helper()
	var found bool
	require.NoError(w.t, w.db.QueryRow(w.t.Context(), `SELECT EXISTS (SELECT FROM identifier_associations
		WHERE identifier = $1 AND identifier_kind = $2 AND revocation_sequence_id IS NULL)`, identifier, int16(kind)).Scan(&found))
	require.Equal(w.t, want, found)
}

func unusualKeyPackages(w *world) {
	maker := mlstest.New(7)
	for name, change := range map[string]func(*mlstest.KeyPackage){
		"an inbox id that is no hex": func(k *mlstest.KeyPackage) { k.Leaf.Credential = mlstest.Credential("no inbox id at all") },
		"another suite":              func(k *mlstest.KeyPackage) { k.CipherSuite = 1 },
		"no capabilities": func(k *mlstest.KeyPackage) {
			k.Leaf.Capabilities, k.Extensions = mlstest.Capabilities{}, nil
		},
		"a long lifetime": func(k *mlstest.KeyPackage) { k.Leaf.NotBefore, k.Leaf.NotAfter = 0, 1<<63 },
	} {
		key := maker.InstallationKey()
		shape := maker.KeyPackage(key, maker.InboxID(), recordedAt)
		change(&shape)
		_, err := w.publisher.Publish(w.t.Context(), &backendv1.PublishRequest{
			Envelopes: []*backendv1.ClientEnvelope{testkit.KeyPackage(shape.Signed(key))}})
		require.NoError(w.t, err, name)
	}
}

// insert writes updates into the database as an older backend stored them.
func (w *world) insert(updates ...*associations.IdentityUpdate) {
	w.t.Helper()
	for _, update := range updates {
		payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(testkit.Identity(update))
		require.NoError(w.t, err)
		inbox, err := hex.DecodeString(update.GetInboxId())
		require.NoError(w.t, err)
		hash := sha256.Sum256(payload)
		_, err = w.db.Exec(w.t.Context(), `WITH row AS (
			INSERT INTO envelopes (topic, sequence_id, server_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
			VALUES ($1, nextval('envelope_sequence'), 1, $2, false, pg_current_xact_id()::text::bigint, $3) RETURNING topic, sequence_id)
			INSERT INTO topic_heads SELECT topic, sequence_id FROM row
			ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id`, append([]byte{2}, inbox...), hash[:], payload)
		require.NoError(w.t, err)
	}
}

// oldLog: what older rules stored is extended by its owner, and a repeat of what is
// stored is answered as such, whatever today's rules say of it.
func oldLog(w *world) {
	wallet, b, d := kit.NewWallet("e2e old"), kit.NewWallet("e2e old b"), kit.NewInstallation("e2e old d")
	o := owner{Wallet: wallet, phone: kit.NewInstallation("e2e old phone"), inbox: kit.InboxID(wallet, 0)}
	legacy := kit.Legacy{Signer: wallet}
	created := kit.NewUpdate(o.inbox, 1).Create(legacy, 0).Add(legacy, o.phone).Update()
	added := w.next(o).Add(o, b).Update()
	removed := w.next(o).Revoke(o, b.Member()).Update()
	old := []*associations.IdentityUpdate{
		created, added, removed,
		altered(added, of(37)), // b is a member again
		w.next(o).Update(),
		w.next(o).Add(b, d).Update(),
		w.next(o).Add(o, d).Update(),
		w.next(o).Revoke(o, kit.EthereumMember(checksummed(b.Text()))).Update(),
	}
	w.insert(old...)
	before := w.stored()
	for _, update := range old {
		w.accept(update) // it is stored already
	}
	require.Equal(w.t, before, w.stored())

	w.refuse(altered(added, low), badUpdate)
	w.refuse(altered(removed, highS), badUpdate)
	w.accept(w.next(o).Add(b, kit.NewInstallation("e2e by b")).Update())
	w.accept(w.next(o).Revoke(o, b.Member()).Update())
	w.refuse(w.next(o).Add(b, kit.NewInstallation("e2e by b, too late")).Update(), badUpdate)
	w.accept(w.next(o).ChangeRecovery(o, kit.NewWallet("e2e old heir").Text(), eth).Update())
}
