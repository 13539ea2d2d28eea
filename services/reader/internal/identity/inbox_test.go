package identity

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Whatever the bytes, the echo is what the protobuf library would have read and
// written.
//
// Proves API-121.
func FuzzLookupEchoesWhatProtobufReads(f *testing.F) {
	address := "0x" + strings.Repeat("aB", 20)
	raw, err := proto.Marshal(&backendv1.GetInboxIdsRequest{Requests: []*backendv1.GetInboxIdsRequest_Request{
		{Identifier: address, IdentifierKind: 1}, {Identifier: "é"}, {IdentifierKind: -5}, {Identifier: strings.Repeat("0c", 33), IdentifierKind: 2}, {},
	}})
	require.NoError(f, err)
	f.Add(raw)
	f.Add(raw[:len(raw)/2])
	f.Add(bytes.ReplaceAll(raw, []byte{'0'}, []byte{0xff}))
	f.Add(slices.Concat(raw, []byte{0x0a, 0x02, 0x10, 0xff}, raw))
	h := New(limit.Default(), rpc.Rooms{}, nil, nil, 1, nil)
	f.Fuzz(func(t *testing.T, raw []byte) {
		asked, lookups, err := h.parseLookups(raw)
		var decoded backendv1.GetInboxIdsRequest
		if proto.Unmarshal(raw, &decoded) != nil || len(decoded.GetRequests()) > int(limit.Default().MaxLookupIdentifiers) {
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			return
		}
		require.NoError(t, err)
		require.Len(t, asked, len(decoded.GetRequests()))
		found := make([]store.InboxID, len(lookups))
		for i := range found {
			require.NotContains(t, lookups[i].Key, "\x00")
			found[i] = store.InboxID{Found: i%2 == 0, Bytes: [32]byte{byte(i)}}
		}
		want := &backendv1.GetInboxIdsResponse{}
		var got []byte
		for i, request := range decoded.GetRequests() {
			response := &backendv1.GetInboxIdsResponse_Response{Identifier: request.GetIdentifier(), IdentifierKind: request.GetIdentifierKind()}
			if inbox := asked[i].inbox(found); inbox != nil {
				response.InboxId = proto.String(hexOf(inbox))
			}
			want.Responses = append(want.Responses, response)
			got = asked[i].append(got, found)
		}
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		require.NoError(t, err)
		require.Equal(t, encoded, append([]byte{}, got...))
	})
}

func hexOf(inbox *store.InboxID) string { return fmt.Sprintf("%x", inbox.Bytes) }
