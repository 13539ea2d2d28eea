package publisher_test

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

// association is a row of the projection.
type association struct {
	identifier string
	added      uint64
	revoked    *uint64
}

func (r *role) associations(inbox string) (rows []association) {
	r.t.Helper()
	id, err := hex.DecodeString(inbox)
	require.NoError(r.t, err)
	found, err := r.db.Query(r.t.Context(), `SELECT identifier, association_sequence_id, revocation_sequence_id
		FROM identifier_associations WHERE inbox_id = $1 AND identifier_kind = 1 ORDER BY identifier`, id)
	require.NoError(r.t, err)
	defer found.Close()
	for found.Next() {
		var a association
		require.NoError(r.t, found.Scan(&a.identifier, &a.added, &a.revoked))
		rows = append(rows, a)
	}
	require.NoError(r.t, found.Err())
	return rows
}

func id(meta *backendv1.EnvelopeMeta) uint64 { return meta.GetCursor().GetSequenceId() }

// Proves API-017, API-122.
func TestTheProjectionFollowsTheUpdates(t *testing.T) {
	r := start(t)
	kit := testkit.New(40)
	client, now := kit.Client(), uint64(time.Now().UnixNano())
	other := associationtest.NewWallet("publisher test, second wallet")
	next := func() *associationtest.Builder {
		now += uint64(time.Second)
		return associationtest.NewUpdate(client.InboxID, now)
	}

	created := id(r.publish(client.Registration(time.Now()))[0])
	require.Equal(t, []association{{client.Wallet.Text(), created, nil}}, r.associations(client.InboxID))

	added := id(r.publish(testkit.Identity(next().Add(client.Wallet, other).Update()))[0])
	require.ElementsMatch(t, []association{{client.Wallet.Text(), created, nil}, {other.Text(), added, nil}}, r.associations(client.InboxID))

	removed := id(r.publish(testkit.Identity(next().Revoke(client.Wallet, other.Member()).Update()))[0])
	require.ElementsMatch(t, []association{{client.Wallet.Text(), created, nil}, {other.Text(), added, &removed}}, r.associations(client.InboxID))

	again := id(r.publish(testkit.Identity(next().Add(client.Wallet, other).Update()))[0])
	require.ElementsMatch(t, []association{{client.Wallet.Text(), created, nil}, {other.Text(), again, nil}}, r.associations(client.InboxID))

	// A refused update changes nothing.
	_, err := r.try(testkit.Identity(next().Revoke(other, client.Wallet.Member()).Update()))
	requireRefused(t, err, codes.InvalidArgument, badUpdate, 0)
	require.ElementsMatch(t, []association{{client.Wallet.Text(), created, nil}, {other.Text(), again, nil}}, r.associations(client.InboxID))
}

// Many updates of one inbox at once: those that lost the check are ABORTED, and
// succeed when sent again (API-051, API-052).
//
// Proves API-014, API-051.
func TestUpdatesOfOneInboxAreSerialized(t *testing.T) {
	r := start(t)
	second := startOn(t, r.primary, r.nats)
	kit := testkit.New(41)
	client := kit.Client()
	r.publish(client.Registration(time.Now()))
	updates := make([]*backendv1.ClientEnvelope, 16)
	for i := range updates {
		updates[i], _ = client.AddInstallation(time.Now())
	}
	aborted := make([]int, len(updates))
	failures := make([]error, len(updates))
	var callers sync.WaitGroup
	for i := range updates {
		to := r
		if i%2 == 1 {
			to = second
		}
		callers.Go(func() {
			for begun := time.Now(); time.Since(begun) < within; {
				if _, failures[i] = to.persist(updates[i]); status.Code(failures[i]) != codes.Aborted {
					return
				}
				aborted[i]++
			}
		})
	}
	callers.Wait()
	sum := 0
	for i := range updates {
		require.NoError(t, failures[i])
		sum += aborted[i]
	}
	require.NotZero(t, sum, "16 at once, and none came too late")
	require.Equal(t, 1+len(updates), r.rows())
}

// Proves API-017, API-060.
func TestAnUpdateAndItsKeyPackageInOneRequest(t *testing.T) {
	r := start(t)
	kit := testkit.New(42)
	client := kit.Client()
	r.publish(client.KeyPackage(time.Now()), client.Registration(time.Now()), kit.Welcome(client.Installation.PublicKey(), 10))
	first := r.publish(client.KeyPackage(time.Now()))
	second := r.publish(client.KeyPackage(time.Now().Add(time.Second)))
	require.Less(t, id(first[0]), id(second[0]))
	var packages int
	require.NoError(t, r.db.QueryRow(t.Context(), "SELECT count(*) FROM envelopes WHERE topic = $1", []byte(client.KeyPackageTopic())).Scan(&packages))
	require.Equal(t, 3, packages, "every upload is kept (API-060)")
}

// A chain that fails is not a bad signature (I10).
//
// Proves API-044, I10.
func TestAFailingChainIsUnavailable(t *testing.T) {
	chain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	t.Cleanup(chain.Close)
	withChain := func(c *publisher.Config, _ *publisher.Deps) {
		require.NoError(t, c.Wallet.Chains.UnmarshalText([]byte("eip155:1="+chain.URL)))
	}
	r := start(t, withChain)
	for name, account := range map[string]string{
		"an endpoint that fails": "eip155:1:0x00000000000000000000000000000000000000aa", "no endpoint": "eip155:5:0x00000000000000000000000000000000000000aa",
	} {
		t.Run(name, func(t *testing.T) {
			update := testkit.New(43).Client().Registration(time.Now()).GetIdentityUpdate()
			update.GetActions()[0].GetCreateInbox().InitialIdentifierSignature = contractSignature(account)
			_, err := r.try(testkit.Identity(update))
			requireRefused(t, err, codes.Unavailable, unspecified, 0)
		})
	}
	require.Zero(t, r.rows())
}

// Wallets on a chain that does not answer hold up nobody else's updates.
func TestASlowChainHoldsNobodyUp(t *testing.T) {
	asked, goOn := make(chan struct{}, 100), make(chan struct{})
	chain := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(chain.Close)
	t.Cleanup(func() { close(goOn) })
	r := start(t, func(c *publisher.Config, _ *publisher.Deps) {
		require.NoError(t, c.Wallet.Chains.UnmarshalText([]byte("eip155:1="+chain.URL)))
		c.Wallet.Timeout = time.Minute
	})
	kit := testkit.New(44)
	const slow = 8
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range slow {
		update := ofContract(kit.Client().Registration(time.Now()))
		callers.Go(func() {
			_, err := r.client.Publish(ctx, &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{update}})
			assert.Error(t, err)
		})
	}
	for range slow {
		receive(t, asked, "a question to the chain")
	}
	client := kit.Client()
	r.publish(client.Registration(time.Now()))
	update, _ := client.AddInstallation(time.Now())
	r.publish(update) // with a history to replay
	cancel()
	callers.Wait()
}

// ofContract gives a registration a signature that only a chain can verify.
func ofContract(registration *backendv1.ClientEnvelope) *backendv1.ClientEnvelope {
	update := registration.GetIdentityUpdate()
	update.GetActions()[0].GetCreateInbox().InitialIdentifierSignature = contractSignature("eip155:1:0x00000000000000000000000000000000000000aa")
	return testkit.Identity(update)
}

func contractSignature(account string) *associations.Signature {
	return &associations.Signature{Signature: &associations.Signature_Erc_6492{Erc_6492: &associations.SmartContractWalletSignature{
		AccountId: account, BlockNumber: 1, Signature: make([]byte, 65),
	}}}
}

// Proves API-044.
func TestContractSignaturesOfAnUpdateAreLimited(t *testing.T) {
	safe := associationtest.NewContractWallet("safe", "eip155:1", 7)
	update := testkit.Identity(associationtest.Register(safe, 0, associationtest.NewInstallation("phone"), 1)) // signed by the contract twice
	for most, want := range map[uint32]codes.Code{1: codes.InvalidArgument, 2: codes.Unavailable} {            // there is no chain to ask
		r := start(t, withLimits(func(l *limit.Config) { l.MaxSCWSignatures = most }))
		_, err := r.try(update)
		require.Equal(t, want, status.Code(err), "at most %d: %v", most, err)
	}
}
