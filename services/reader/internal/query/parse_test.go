package query

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// seeds are requests, and requests cut, doubled and changed.
func seeds(f *testing.F, requests ...proto.Message) {
	f.Helper()
	for _, request := range requests {
		raw, err := proto.Marshal(request)
		require.NoError(f, err)
		f.Add(raw)
		f.Add(raw[:len(raw)/2])
		f.Add(slices.Concat(raw, raw))
		f.Add(slices.Concat(raw, []byte{0x0b, 0x0c}))       // a group of number 1
		f.Add(slices.Concat([]byte{0x08, 0x01}, raw))       // field 1 as a number
		f.Add([]byte("\xe8\xe8\xe8\xe80\xe80"))             // a field number that is too large
		f.Add(bytes.ReplaceAll(raw, []byte{10}, []byte{8})) // bytes as numbers
	}
}

func asTopicQuery(kind byte, cursor uint64) *backendv1.TopicQuery {
	length := map[byte]int{0: 16, 1: 32, 2: 32, 3: 32, 4: 16}[kind]
	return &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: append([]byte{kind}, make([]byte, length)...)}, Cursor: &backendv1.Cursor{SequenceId: cursor}}
}

// Whatever the bytes, a request means here what it means to the protobuf
// library.
func FuzzQueryMeansWhatProtobufReads(f *testing.F) {
	seeds(f,
		&backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{asTopicQuery(0, 1), asTopicQuery(1, math.MaxInt64), asTopicQuery(0, 0)}, Limit: 7},
		&backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{asTopicQuery(3, 1)}},
		&backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{asTopicQuery(2, math.MaxUint64), {}}, Limit: math.MaxUint32})
	limits := limit.Default()
	h := New(limits, rpc.Rooms{}, nil, nil)
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := h.parseQuery(raw)
		var decoded backendv1.QueryRequest
		if proto.Unmarshal(raw, &decoded) != nil {
			require.Equal(t, fault.Invalid, fault.KindOf(err), "malformed")
			return
		}
		want := map[topic.Topic]topic.SequenceID{}
		valid := len(decoded.GetQueries()) <= int(limits.MaxQueryTopics)
		for _, query := range decoded.GetQueries() {
			name, topicErr := topic.Parse(query.GetTopic().GetTopic())
			cursor, cursorErr := topic.ParseCursor(query.GetCursor().GetSequenceId())
			valid = valid && topicErr == nil && cursorErr == nil && name.Kind() != topic.KeyPackage
			if before, again := want[name]; !again || cursor < before {
				want[name] = cursor
			}
		}
		if !valid {
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			return
		}
		require.NoError(t, err)
		read := map[topic.Topic]topic.SequenceID{}
		for i, name := range got.Topics {
			read[name] = got.Cursors[i]
		}
		require.Len(t, got.Topics, len(read), "distinct")
		require.Equal(t, want, read)
		rows := decoded.GetLimit()
		if rows == 0 {
			rows = limits.DefaultQueryLimit
		}
		require.EqualValues(t, min(rows, limits.MaxQueryLimit), got.Limit)
	})
}

func FuzzNewestMeansWhatProtobufReads(f *testing.F) {
	seeds(f,
		&backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{asTopicQuery(0, 1).GetTopic(), asTopicQuery(3, 1).GetTopic(), asTopicQuery(0, 1).GetTopic()}, IncludeFullEnvelope: true},
		&backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{{}}})
	limits := limit.Default()
	h := New(limits, rpc.Rooms{}, nil, nil)
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := h.parseNewest(raw)
		var decoded backendv1.QueryNewestRequest
		if proto.Unmarshal(raw, &decoded) != nil {
			require.Equal(t, fault.Invalid, fault.KindOf(err), "malformed")
			return
		}
		most := limits.MaxNewestMetadataTopics
		if decoded.GetIncludeFullEnvelope() {
			most = limits.MaxNewestFullTopics
		}
		valid := len(decoded.GetTopics()) <= int(most)
		want := []topic.Topic{}
		for _, wire := range decoded.GetTopics() {
			name, topicErr := topic.Parse(wire.GetTopic())
			valid = valid && topicErr == nil
			if !slices.Contains(want, name) {
				want = append(want, name)
			}
		}
		if !valid {
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			return
		}
		require.NoError(t, err)
		require.Equal(t, want, append([]topic.Topic{}, got.Topics...))
		require.Equal(t, decoded.GetIncludeFullEnvelope(), got.Full)
	})
}
