package reader_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/reader"
)

func queries(n int) []*backendv1.TopicQuery {
	all := make([]*backendv1.TopicQuery, n)
	for i := range all {
		all[i] = query(group(i), 0)
	}
	return all
}

func topics(n int) []*backendv1.Topic {
	all := make([]*backendv1.Topic, n)
	for i := range all {
		all[i] = &backendv1.Topic{Topic: []byte(group(i))}
	}
	return all
}

func same[T any](n int, one T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = one
	}
	return all
}

// Invariant I8: each structural limit holds at its value and fails one past it.
//
// Proves API-070, API-077, API-080, API-084, API-120, API-130, API-145, I8.
func TestStructuralLimits(t *testing.T) {
	db := pgtest.Migrated(t, migrate)
	r := start(t, configuration(t, db.PrimaryURL, db.ReplicaURL))
	askQuery := func(n int) error {
		_, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(n)})
		return err
	}
	for _, c := range []struct {
		name string
		most int
		ask  func(n int) error
	}{
		{"topics of a query", 1000, askQuery},
		{"repeated topics of a query", 1000, func(n int) error {
			_, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: same(n, query(group(1), 5))})
			return err
		}},
		{"topics of a newest read of metadata", 1000, func(n int) error {
			_, err := r.QueryNewest(t.Context(), &backendv1.QueryNewestRequest{Topics: topics(n)})
			return err
		}},
		{"topics of a newest read of envelopes", 100, func(n int) error {
			_, err := r.QueryNewest(t.Context(), &backendv1.QueryNewestRequest{Topics: topics(n), IncludeFullEnvelope: true})
			return err
		}},
		{"repeated topics of a newest read", 100, func(n int) error {
			_, err := r.QueryNewest(t.Context(), &backendv1.QueryNewestRequest{Topics: same(n, topics(1)[0]), IncludeFullEnvelope: true})
			return err
		}},
		{"identifiers of a lookup", 250, func(n int) error {
			_, err := r.GetInboxIds(t.Context(), &backendv1.GetInboxIdsRequest{Requests: same(n, &backendv1.GetInboxIdsRequest_Request{Identifier: address})})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, c.ask(c.most))
			requireCode(t, codes.InvalidArgument, c.ask(c.most+1))
			requireCode(t, codes.InvalidArgument, c.ask(50*c.most))
		})
	}
}

// API-071: 0 takes the default, more than the maximum is clamped.
//
// Proves API-071, API-073, API-145.
func TestTheLimitOfAQuery(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	fill(t, conn, 1, 1002)
	r := start(t, configuration(t, db.PrimaryURL))
	for _, c := range []struct {
		limit uint32
		want  int
		more  bool
	}{{0, 100, true}, {1, 1, true}, {999, 999, true}, {1000, 1000, true}, {1001, 1000, true}, {math.MaxUint32, 1000, true}} {
		answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2), Limit: c.limit})
		require.NoError(t, err)
		require.Len(t, answer.GetEnvelopes(), c.want, "limit %d", c.limit)
		require.Equal(t, c.more, answer.GetContinuation().GetHasMore(), "limit %d", c.limit)
	}
	// has_more is exact: as many rows as the limit are no more.
	for cursor, more := range map[uint64]bool{1: true, 2: false, 3: false} {
		answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{query(group(1), cursor)}, Limit: 1000})
		require.NoError(t, err)
		require.Len(t, answer.GetEnvelopes(), min(1000, int(1002-cursor)))
		require.Equal(t, more, answer.GetContinuation().GetHasMore(), "cursor %d", cursor)
	}
}

// API-003: an unknown kind or a wrong length is refused, whatever else is asked.
//
// Proves API-003, API-075.
func TestTopicsOfTheWrongForm(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	r := start(t, configuration(t, db.PrimaryURL))
	lengths := map[byte]int{0: 16, 1: 32, 2: 32, 3: 32, 4: 16}
	for kind := range byte(8) {
		for length := range 36 {
			raw := append([]byte{kind}, bytes.Repeat([]byte{9}, length)...)
			good := kind <= 4 && lengths[kind] == length
			want := codes.InvalidArgument
			if good {
				want = codes.OK
			}
			_, err := r.QueryNewest(t.Context(), &backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{{Topic: []byte(group(1))}, {Topic: raw}}})
			requireCode(t, want, err)
			if kind == byte(topic.KeyPackage) {
				want = codes.InvalidArgument // API-075
			}
			_, err = r.Query(t.Context(), &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{query(group(1), 0), {Topic: &backendv1.Topic{Topic: raw}}}})
			requireCode(t, want, err)
		}
	}
	for _, entry := range []*backendv1.TopicQuery{{}, {Topic: &backendv1.Topic{}}} {
		_, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{entry}})
		requireCode(t, codes.InvalidArgument, err)
	}
	_, err := r.QueryNewest(t.Context(), &backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{{}}})
	requireCode(t, codes.InvalidArgument, err)
	_, err = r.Query(t.Context(), &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{query(group(1), 0), {}}})
	require.ErrorContains(t, err, "query 1:")
}

// Proves API-004, API-015.
func TestCursors(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	r := start(t, configuration(t, db.PrimaryURL))
	var head uint64
	for i := range 3 {
		head = put(t, conn, group(1), message(i, 10))
	}
	for _, c := range []struct {
		name   string
		cursor uint64
		want   int
		code   codes.Code
	}{
		{"the beginning", 0, 3, codes.OK},
		{"below the head", head - 1, 1, codes.OK},
		{"the head", head, 0, codes.OK},
		{"above the head", head + 1, 0, codes.OK}, // API-015
		{"the greatest", math.MaxInt64, 0, codes.OK},
		{"above the greatest", math.MaxInt64 + 1, 0, codes.InvalidArgument},
		{"all bits", math.MaxUint64, 0, codes.InvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{query(group(1), c.cursor)}})
			requireCode(t, c.code, err)
			require.Len(t, answer.GetEnvelopes(), c.want)
			require.False(t, answer.GetContinuation().GetHasMore())
		})
	}
	_, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: append(queries(1), query(group(1), math.MaxInt64+1))})
	requireCode(t, codes.InvalidArgument, err)
}

// padded is a request that takes exactly size bytes, by a field that no one knows.
func padded(t *testing.T, request proto.Message, size int) []byte {
	t.Helper()
	raw, err := proto.Marshal(request)
	require.NoError(t, err)
	raw = protowire.AppendTag(raw, 1000, protowire.BytesType)
	for length := size - len(raw) - 5; ; length++ {
		if full := protowire.AppendBytes(raw, make([]byte, length)); len(full) >= size {
			require.Len(t, full, size)
			return full
		}
	}
}

// Proves API-130.
func TestBytesOfARequest(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	r := start(t, configuration(t, db.PrimaryURL))
	for _, method := range []string{"QueryService/Query", "QueryService/QueryNewest", "IdentityService/GetInboxIds", "IdentityService/VerifySmartContractWalletSignatures"} {
		t.Run(method, func(t *testing.T) {
			requireCode(t, codes.OK, r.raw(t, method, padded(t, &backendv1.QueryRequest{}, 25<<20)))
			requireCode(t, codes.OutOfRange, r.raw(t, method, padded(t, &backendv1.QueryRequest{}, 25<<20+1)))
		})
	}
}

// A response may take exactly the configured bytes; one byte more fails and is
// never shortened (API-134).
//
// Proves API-134.
func TestBytesOfAResponse(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	put(t, conn, group(0), message(0, 200))
	put(t, conn, group(1), message(1, 3000))
	put(t, conn, group(1), message(2, 100))
	put(t, conn, group(2), message(3, 20_000)) // stored out of line
	generous := start(t, configuration(t, db.PrimaryURL))
	for name, ask := range map[string]func(r role) (proto.Message, error){
		"query": func(r role) (proto.Message, error) {
			return r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(3), Limit: 3})
		},
		"query of all": func(r role) (proto.Message, error) {
			return r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(3)})
		},
		"query of one topic": func(r role) (proto.Message, error) {
			return r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2)[1:]})
		},
		"query of a part of one topic": func(r role) (proto.Message, error) {
			return r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2)[1:], Limit: 1})
		},
		"newest envelopes": func(r role) (proto.Message, error) {
			return r.QueryNewest(t.Context(), &backendv1.QueryNewestRequest{Topics: topics(3), IncludeFullEnvelope: true})
		},
		"newest metadata": func(r role) (proto.Message, error) {
			return r.QueryNewest(t.Context(), &backendv1.QueryNewestRequest{Topics: topics(3)})
		},
		"lookup": func(r role) (proto.Message, error) {
			return r.GetInboxIds(t.Context(), &backendv1.GetInboxIdsRequest{Requests: same(9, &backendv1.GetInboxIdsRequest_Request{Identifier: address})})
		},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := ask(generous)
			require.NoError(t, err)
			size := proto.Size(want)
			limited := func(bytes int) role {
				cfg := configuration(t, db.PrimaryURL)
				cfg.Limits.MaxEnvelopeBytes = 1
				cfg.Limits.MaxResponseBytes = uint64(bytes)
				return start(t, cfg)
			}
			got, err := ask(limited(size + slack(want)))
			require.NoError(t, err)
			require.Equal(t, size, proto.Size(got))
			_, err = ask(limited(size + slack(want) - 1))
			requireCode(t, codes.OutOfRange, err)
		})
	}
}

// slack is room that a response keeps for has_more, even where it is false.
func slack(response proto.Message) int {
	if page, ok := response.(*backendv1.QueryResponse); ok && !page.GetContinuation().GetHasMore() {
		return 2
	}
	return 0
}

func TestMalformedRequests(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	r := start(t, configuration(t, db.PrimaryURL))
	for _, method := range []string{"QueryService/Query", "QueryService/QueryNewest", "IdentityService/GetInboxIds", "IdentityService/VerifySmartContractWalletSignatures"} {
		for name, raw := range map[string][]byte{
			"cut short":         {0x0a, 0x05, 0x01},
			"field number 0":    {0x02, 0x00},
			"cut entry":         {0x0a, 0x02, 0x0a, 0x05},
			"end without group": {0x0c},
			"endless varint":    bytes.Repeat([]byte{0x80}, 20),
		} {
			requireCode(t, codes.InvalidArgument, r.raw(t, method, raw))
			t.Log(method, name)
		}
	}
}

func TestAConfigurationNamesItsMistakes(t *testing.T) {
	cfg := configuration(t, "postgres://localhost/x")
	cfg.ResponseBytes, cfg.RequestBytes, cfg.VerificationBytes = 27<<20*8/7+1, (25<<20+128<<10)*8/7+1, 8<<20*8/7+1
	require.NoError(t, cfg.Validate())
	for variable, spoil := range map[string]func(*reader.Config){
		"XMTP_READER_LISTEN":           func(c *reader.Config) { c.Listen = "x" },
		"XMTP_PRIMARY_URL":             func(c *reader.Config) { c.PrimaryURL = "mysql://x" },
		"XMTP_REPLICA_URL":             func(c *reader.Config) { c.ReplicaURL = append(c.ReplicaURL, "x") },
		"XMTP_READER_PRIMARY_FALLBACK": func(c *reader.Config) { c.PrimaryFallback = -1 },
		"XMTP_SCW_CONCURRENCY":         func(c *reader.Config) { c.SCWConcurrency = 0 },
		"XMTP_DB_PROBE_INTERVAL":       func(c *reader.Config) { c.Database.ProbeInterval = 0 },
		// One byte less than what one response of 25 MiB and a 2 MiB buffer need.
		"XMTP_READER_RESPONSE_BYTES":     func(c *reader.Config) { c.ResponseBytes = 27<<20*8/7 - 1 },
		"XMTP_READER_REQUEST_BYTES":      func(c *reader.Config) { c.RequestBytes = (25<<20+128<<10)*8/7 - 1 },
		"XMTP_READER_VERIFICATION_BYTES": func(c *reader.Config) { c.VerificationBytes = 8<<20*8/7 - 1 },
		"XMTP_MAX_QUERY_TOPICS":          func(c *reader.Config) { c.Limits.MaxQueryTopics = 0 },
	} {
		wrong := cfg
		spoil(&wrong)
		require.ErrorContains(t, wrong.Validate(), variable)
		_, err := reader.New(wrong, reader.Deps{})
		require.Error(t, err)
	}
}
