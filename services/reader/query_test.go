package reader_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Proves API-023, API-072.
func TestAQueryReturnsWhatWasStored(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	r := start(t, configuration(t, db.PrimaryURL))
	stored := message(1, 5000)
	id := put(t, conn, group(1), stored)
	answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group(1))}}}})
	require.NoError(t, err)
	require.NotNil(t, answer.GetContinuation())
	require.False(t, answer.GetContinuation().GetHasMore())
	require.Len(t, answer.GetEnvelopes(), 1)
	got := answer.GetEnvelopes()[0]
	require.True(t, proto.Equal(stored, got.GetEnvelope()))
	meta := got.GetMeta()
	require.Equal(t, id, meta.GetCursor().GetSequenceId())
	require.EqualValues(t, 1000, meta.GetServerNs())
	require.EqualValues(t, 2000, meta.GetExpiryNs())
	require.True(t, meta.GetIsCommitOrProposal())
	require.Equal(t, []byte(group(1)), meta.GetTopic().GetTopic())
	require.Len(t, meta.GetMessageHash().GetSha256(), 32)
}
