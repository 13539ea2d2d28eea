package stream

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// FuzzDecodeRequest compares the decoder with generated code: what it accepts
// generated code accepts with the same values, and it refuses nothing that
// generated code finds well formed and API-091 to API-093 allow.
func FuzzDecodeRequest(f *testing.F) {
	name := &backendv1.Topic{Topic: []byte(group(1))}
	for _, seed := range []*backendv1.SubscribeRequest{
		{},
		{Request: &backendv1.SubscribeRequest_Ping{Ping: &backendv1.Ping{Nonce: 1 << 63}}},
		{Request: &backendv1.SubscribeRequest_Pong{Pong: &backendv1.Pong{}}},
		{Request: &backendv1.SubscribeRequest_Update_{Update: &backendv1.SubscribeRequest_Update{
			Id: 7, Adds: []*backendv1.TopicQuery{{Topic: name, Cursor: &backendv1.Cursor{SequenceId: 5}}, {Topic: name}}, Removes: []*backendv1.Topic{name},
		}}},
	} {
		encoded, err := proto.Marshal(seed)
		require.NoError(f, err)
		f.Add(encoded)
		f.Add(append(encoded, encoded...))
	}
	limits := limit.Default()
	f.Fuzz(func(t *testing.T, message []byte) {
		var want backendv1.SubscribeRequest
		wellFormed := proto.Unmarshal(message, &want) == nil
		got, err := decodeRequest(message, limits)
		if err != nil {
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			return
		}
		if !wellFormed {
			return // a broken field that the decoder does not look into
		}
		switch r := want.Request.(type) {
		case nil:
			require.Zero(t, got.which)
		case *backendv1.SubscribeRequest_Ping:
			require.EqualValues(t, requestPing, got.which)
			require.Equal(t, r.Ping.Nonce, got.nonce)
		case *backendv1.SubscribeRequest_Pong:
			require.EqualValues(t, requestPong, got.which)
			require.Equal(t, r.Pong.Nonce, got.nonce)
		case *backendv1.SubscribeRequest_Update_:
			require.EqualValues(t, requestUpdate, got.which)
			require.Equal(t, r.Update.Id, got.update.ID)
			require.Len(t, got.update.Adds, len(r.Update.Adds))
			for i, add := range r.Update.Adds {
				require.Equal(t, string(add.GetTopic().GetTopic()), string(got.update.Adds[i].Topic))
				require.Equal(t, add.GetCursor().GetSequenceId(), uint64(got.update.Adds[i].Cursor))
			}
			require.Len(t, got.update.Removes, len(r.Update.Removes))
			for i, name := range r.Update.Removes {
				require.Equal(t, string(name.GetTopic()), string(got.update.Removes[i]))
			}
		}
	})
}

// An update counts as no less than what it takes in memory while it waits.
func TestAnUpdateCountsAsItsMemory(t *testing.T) {
	const topics = 100_000
	update := &backendv1.SubscribeRequest_Update{Id: 1}
	for i := range topics {
		name := make([]byte, 1+topic.KeyLength) // the longest kind
		name[0], name[1], name[2], name[3] = byte(topic.KeyPackage), byte(i), byte(i>>8), byte(i>>16)
		update.Adds = append(update.Adds, &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: name}, Cursor: &backendv1.Cursor{SequenceId: 1 << 40}})
	}
	message, err := proto.Marshal(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: update}})
	require.NoError(t, err)
	limits := limit.Default()
	require.Equal(t, topics, topicsOf(message, limits))
	before := heapBytes()
	got, err := decodeRequest(message, limits)
	require.NoError(t, err)
	decoded := heapBytes() - before
	// Beside it there are, before the answer: the new registrations, their heads, and
	// for a moment the set that finds a topic named twice.
	const beside = 8*5/4 + 8 + 64
	t.Logf("%d bytes a topic, decoded", decoded/topics)
	require.LessOrEqual(t, decoded/topics+beside, uint64(delivery.UpdateTopicBytes))
	runtime.KeepAlive(got)
	runtime.KeepAlive(message)
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// What names no topic is not counted, and never more than one update may name.
func TestTopicsOfARequest(t *testing.T) {
	limits := limit.Default()
	limits.MaxUpdateAdds, limits.MaxUpdateRemoves = 3, 2
	name := &backendv1.Topic{Topic: []byte(group(1))}
	for want, request := range map[int]*backendv1.SubscribeRequest{
		0: {Request: &backendv1.SubscribeRequest_Ping{Ping: &backendv1.Ping{Nonce: 1}}},
		3: {Request: &backendv1.SubscribeRequest_Update_{Update: &backendv1.SubscribeRequest_Update{
			Id: 7, Adds: []*backendv1.TopicQuery{{Topic: name}, {Topic: name}}, Removes: []*backendv1.Topic{name}}}},
		5: {Request: &backendv1.SubscribeRequest_Update_{Update: &backendv1.SubscribeRequest_Update{
			Id: 7, Removes: []*backendv1.Topic{name, name, name, name, name, name}}}},
	} {
		message, err := proto.Marshal(request)
		require.NoError(t, err)
		require.Equal(t, want, topicsOf(message, limits))
	}
}
