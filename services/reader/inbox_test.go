package reader_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

const (
	unspecified = associations.IdentifierKind_IDENTIFIER_KIND_UNSPECIFIED
	ethereum    = associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM
	passkey     = associations.IdentifierKind_IDENTIFIER_KIND_PASSKEY
)

// Proves API-053, API-121, API-122.
func TestInboxLookup(t *testing.T) {
	db := pgtest.Migrated(t, migrate)
	conn := connect(t, db.PrimaryURL)
	r := start(t, configuration(t, db.PrimaryURL, db.ReplicaURL))
	key := strings.Repeat("0a", 33)
	bare := strings.TrimPrefix(address, "0x")
	other := "0x" + strings.Repeat("1", 40)
	associate(t, conn, 1, address, 1, 10, 0)
	associate(t, conn, 1, address, 2, 20, 0)
	associate(t, conn, 1, address, 3, 30, 40) // revoked
	associate(t, conn, 1, bare, 4, 50, 0)
	associate(t, conn, 2, key, 5, 60, 0)
	associate(t, conn, 1, other, 6, 70, 80)
	ask := func(requests ...*backendv1.GetInboxIdsRequest_Request) []*backendv1.GetInboxIdsResponse_Response {
		t.Helper()
		pgtest.WaitReplayed(t, pgtest.Primary(t), replicaServer(t))
		answer, err := r.GetInboxIds(t.Context(), &backendv1.GetInboxIdsRequest{Requests: requests})
		require.NoError(t, err)
		require.Len(t, answer.GetResponses(), len(requests))
		return answer.GetResponses()
	}
	cases := []struct {
		identifier string
		kind       associations.IdentifierKind
		inbox      byte // 0: absent
	}{
		{address, ethereum, 2},
		{strings.ToUpper(bare), ethereum, 4},
		{"0x" + strings.ToUpper(bare), ethereum, 2},
		{address, unspecified, 2},
		{address, ethereum, 2}, // repeated
		{address, passkey, 0},
		{address, 7, 0}, // a kind of the future
		{address, -1, 0},
		{key, passkey, 5},
		{strings.ToUpper(key), passkey, 5},
		{key, ethereum, 0},
		{other, ethereum, 0}, // only revoked
		{"", ethereum, 0},
		{"", unspecified, 0},
		{"nobody", ethereum, 0},
		{address + "\x00", ethereum, 0},
		{"\x00" + address[1:], ethereum, 0},
		{"0x" + strings.Repeat("é", 20), ethereum, 0},
		{strings.Repeat("x", 100_000), passkey, 0},
	}
	var requests []*backendv1.GetInboxIdsRequest_Request
	for _, c := range cases {
		requests = append(requests, &backendv1.GetInboxIdsRequest_Request{Identifier: c.identifier, IdentifierKind: c.kind})
	}
	for i, got := range ask(requests...) {
		require.Equal(t, cases[i].identifier, got.GetIdentifier(), "echoed as it was spelled")
		require.Equal(t, cases[i].kind, got.GetIdentifierKind())
		require.Equal(t, cases[i].inbox != 0, got.InboxId != nil, "%q", cases[i].identifier)
		if cases[i].inbox != 0 {
			require.Equal(t, inboxID(cases[i].inbox), got.GetInboxId())
		}
	}
	require.Empty(t, ask())

	// Revoking the latest association reveals the older one (API-122).
	associate(t, conn, 1, address, 2, 20, 90)
	require.Equal(t, inboxID(1), ask(requests[0])[0].GetInboxId())
	associate(t, conn, 1, address, 1, 10, 100)
	require.Nil(t, ask(requests[0])[0].InboxId)
	associate(t, conn, 1, address, 1, 110, 0)
	require.Equal(t, inboxID(1), ask(requests[0])[0].GetInboxId())

	broken, err := proto.Marshal(&backendv1.GetInboxIdsRequest{Requests: []*backendv1.GetInboxIdsRequest_Request{{Identifier: "zz"}}})
	require.NoError(t, err)
	broken[len(broken)-1] = 0xff // not UTF-8
	requireCode(t, codes.InvalidArgument, r.raw(t, "IdentityService/GetInboxIds", broken))
}

// What nobody can be called is answered without a question to a database.
func TestAnImpossibleIdentifierNeedsNoDatabase(t *testing.T) {
	r := start(t, configuration(t, "postgres://127.0.0.1:1/none"))
	answer, err := r.GetInboxIds(t.Context(), &backendv1.GetInboxIdsRequest{Requests: []*backendv1.GetInboxIdsRequest_Request{{Identifier: "a\x00b"}}})
	require.NoError(t, err)
	require.Nil(t, answer.GetResponses()[0].InboxId)
	_, err = r.GetInboxIds(t.Context(), &backendv1.GetInboxIdsRequest{Requests: []*backendv1.GetInboxIdsRequest_Request{{Identifier: address}}})
	requireCode(t, codes.Unavailable, err)
	require.False(t, r.serving(t))
}
