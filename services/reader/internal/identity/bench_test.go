package identity

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// What a lookup costs beside the database: reading the request and writing the
// response.
func BenchmarkLookupWithoutDatabase(b *testing.B) {
	for _, n := range []int{1, 250} {
		request := &backendv1.GetInboxIdsRequest{}
		for i := range n {
			request.Requests = append(request.Requests, &backendv1.GetInboxIdsRequest_Request{Identifier: fmt.Sprintf("0x%040x", i), IdentifierKind: 1})
		}
		raw, err := proto.Marshal(request)
		if err != nil {
			b.Fatal(err)
		}
		h := New(limit.Default(), rpc.Rooms{Budget: budget.New(1<<30, 0)}, nil, nil, 1, nil)
		found := make([]store.InboxID, n)
		for i := range found {
			found[i].Found = true
		}
		b.Run(fmt.Sprintf("%d identifiers", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				asked, lookups, err := h.parseLookups(raw)
				if err != nil || len(lookups) != n {
					b.Fatal(err)
				}
				answer := h.rooms.Answer()
				answer.Expect(sizeOfLookups(asked, found))
				writeLookups(answer, asked, found)
				answer.Frame().Free()
			}
		})
		b.Run(fmt.Sprintf("%d identifiers by the protobuf library", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var decoded backendv1.GetInboxIdsRequest
				if err := proto.Unmarshal(raw, &decoded); err != nil {
					b.Fatal(err)
				}
				response := &backendv1.GetInboxIdsResponse{}
				for i, r := range decoded.GetRequests() {
					id := hexOf(&found[i])
					response.Responses = append(response.Responses, &backendv1.GetInboxIdsResponse_Response{Identifier: r.GetIdentifier(), IdentifierKind: r.GetIdentifierKind(), InboxId: &id})
				}
				if _, err := proto.Marshal(response); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
