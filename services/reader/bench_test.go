package reader_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// identifier is the n-th of the addresses that a benchmark stores.
func identifier(n int) string {
	return fmt.Sprintf("0x%x", binary.BigEndian.AppendUint64(make([]byte, 12), uint64(n)))
}

// Calls through gRPC on loopback, as a gateway makes them, against one server
// that is both primary and replica.
func BenchmarkReads(b *testing.B) {
	db := pgtest.MigratedPrimary(b, migrate)
	conn := connect(b, db.PrimaryURL)
	r := start(b, configuration(b, db.PrimaryURL))
	execute(b, conn, `INSERT INTO identifier_associations
		SELECT 1, '0x000000000000000000000000' || encode(int8send(n), 'hex'), sha256(int8send(n)), n, NULL FROM generate_series(0, 100000) n`)
	for i := range 1000 {
		fill(b, conn, i, 20)
	}
	execute(b, conn, `ANALYZE`)
	lookup := func(n int) proto.Message {
		request := &backendv1.GetInboxIdsRequest{}
		for i := range n {
			request.Requests = append(request.Requests, &backendv1.GetInboxIdsRequest_Request{
				Identifier: identifier(i * 100_000 / n), IdentifierKind: associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM,
			})
		}
		return request
	}
	for _, c := range []struct {
		name, method string
		request      proto.Message
	}{
		{"inbox ids of 1", "IdentityService/GetInboxIds", lookup(1)},
		{"inbox ids of 250", "IdentityService/GetInboxIds", lookup(250)},
		{"query of 1 topic", "QueryService/Query", &backendv1.QueryRequest{Queries: queries(1)}},
		{"query of 1000 topics, 1000 rows", "QueryService/Query", &backendv1.QueryRequest{Queries: queries(1000), Limit: 1000}},
		{"newest metadata of 1 topic", "QueryService/QueryNewest", &backendv1.QueryNewestRequest{Topics: topics(1)}},
		{"newest metadata of 1000 topics", "QueryService/QueryNewest", &backendv1.QueryNewestRequest{Topics: topics(1000)}},
		{"newest envelopes of 100 topics", "QueryService/QueryNewest", &backendv1.QueryNewestRequest{Topics: topics(100), IncludeFullEnvelope: true}},
	} {
		encoded, err := proto.Marshal(c.request)
		require.NoError(b, err)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := r.raw(b, c.method, encoded); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
	b.Run("refuse a query of 50000 topics", func(b *testing.B) {
		encoded, err := proto.Marshal(&backendv1.QueryRequest{Queries: queries(50_000)})
		require.NoError(b, err)
		b.SetBytes(int64(len(encoded)))
		b.ReportAllocs()
		for b.Loop() {
			if r.raw(b, "QueryService/Query", encoded) == nil {
				b.Fatal("an over-limit request was answered")
			}
		}
	})
}
