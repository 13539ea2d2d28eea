package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/wire"
)

func TestCountStopsOnePastTheLimit(t *testing.T) {
	request := &backendv1.QueryNewestRequest{IncludeFullEnvelope: true}
	for range 7 {
		request.Topics = append(request.Topics, &backendv1.Topic{Topic: []byte("abc")})
	}
	raw, err := proto.Marshal(request)
	require.NoError(t, err)
	for most, want := range map[uint32]int{0: 1, 5: 6, 6: 7, 7: 7, 100: 7} {
		got, err := wire.Count(raw, 1, most)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	// What lies behind the limit is not even looked at.
	got, err := wire.Count(append(raw, 0xff), 1, 3)
	require.NoError(t, err)
	require.Equal(t, 4, got)
	_, err = wire.Count(append(raw, 0xff), 1, 7)
	require.ErrorIs(t, err, wire.ErrMalformed)
}

func BenchmarkRefuseTooManyTopics(b *testing.B) {
	request := &backendv1.QueryRequest{}
	for range 50_000 {
		request.Queries = append(request.Queries, &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: make([]byte, 17)}, Cursor: &backendv1.Cursor{SequenceId: 1 << 40}})
	}
	raw, err := proto.Marshal(request)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if count, _ := wire.Count(raw, 1, 1000); count != 1001 {
			b.Fatal(count)
		}
	}
}
