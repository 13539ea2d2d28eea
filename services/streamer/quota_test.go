package streamer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// One caller may hold as many streams as it likes: two hundred on one
// connection are all served, and all of them are live.
//
// Proves API-101.
func TestOneCallerMayHoldManyStreams(t *testing.T) {
	const many = 200
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	streams := make([]backendv1.SubscriptionService_SubscribeClient, many)
	for i := range streams {
		stream, err := r.client.Subscribe(ctx)
		require.NoError(t, err, "stream %d", i)
		started, err := stream.Recv()
		require.NoError(t, err, "stream %d", i)
		require.NotNil(t, started.GetStarted())
		streams[i] = stream
	}
	for i, stream := range streams {
		require.NoError(t, stream.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{
			Update: &backendv1.SubscribeRequest_Update{Id: 1, Adds: []*backendv1.TopicQuery{query(group(1), 0)}}}}))
		applied, err := stream.Recv()
		require.NoError(t, err, "stream %d", i)
		require.EqualValues(t, 1, applied.GetApplied().GetId())
	}
	sent := r.writer.publish(group(1))
	for i, stream := range streams {
		frame, err := stream.Recv()
		require.NoError(t, err, "stream %d", i)
		require.Len(t, frame.GetMessages().GetEnvelopes(), 1)
		require.EqualValues(t, sent[0].id, frame.GetMessages().GetEnvelopes()[0].GetMeta().GetCursor().GetSequenceId())
	}
}
