package stream

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// FuzzDecodeRequest compares the decoder with generated code: what it accepts
// generated code accepts with the same values, and it refuses nothing that
// generated code finds well formed and section 8 allows.
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
