package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/xmtp-selfhosted/backend/pkg/wire"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
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

// What the protobuf library takes for a message, and nothing else, is read to its end.
func FuzzStrictness(f *testing.F) {
	for _, seed := range []string{
		"", "\x0a\x00", "\x0a\x01", "\x08\x80", "\x00\x00", "\x0b\x0c", "\x0b", "\x0c", "\x0b\x14", "\x0d\x00\x00\x00\x00", "\x0f",
		"\xf8\xff\xff\xff\x0f\x00",         // the largest field number
		"\x80\x80\x80\x80\x10\x00",         // one past it
		"\x8a\x00\x00",                     // a tag in more bytes than needed
		"\x0a\x80\x80\x80\x80\x80\x80\x01", // a length beyond the message
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		m := wire.Read(message)
		for m.Next() {
		}
		err := proto.Unmarshal(message, &emptypb.Empty{}) // to which all fields are unknown
		require.Equal(t, err == nil, m.Err() == nil, "%v against %v", err, m.Err())
	})
}
