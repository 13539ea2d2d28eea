package reader_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Proves API-061, API-081, API-082, API-083, API-084.
func TestNewestEnvelopes(t *testing.T) {
	db := pgtest.Migrated(t, migrate)
	conn := connect(t, db.PrimaryURL)
	r := start(t, configuration(t, db.PrimaryURL, db.ReplicaURL))
	packages := named(topic.KeyPackage, 1)
	put(t, conn, group(1), message(1, 10))
	newest := map[topic.Topic]*backendv1.ClientEnvelope{group(1): message(2, 5000), group(2): message(3, 10), packages: message(4, 10)}
	heads := map[topic.Topic]uint64{}
	for name, envelope := range newest {
		heads[name] = put(t, conn, name, envelope)
	}
	// A topic whose publisher was stopped has a head of 0 and no envelope.
	execute(t, conn, `INSERT INTO topic_heads VALUES ($1, 0)`, []byte(group(4)))
	pgtest.WaitReplayed(t, pgtest.Primary(t), replicaServer(t))

	request := &backendv1.QueryNewestRequest{}
	for _, name := range []topic.Topic{packages, group(3), group(2), group(4), group(1), packages, group(2)} {
		request.Topics = append(request.Topics, &backendv1.Topic{Topic: []byte(name)})
	}
	for _, full := range []bool{false, true} {
		request.IncludeFullEnvelope = full
		answer, err := r.QueryNewest(t.Context(), request)
		require.NoError(t, err)
		got := []topic.Topic{}
		for _, result := range answer.GetResults() {
			name := topic.Topic(result.GetTopic().GetTopic())
			got = append(got, name)
			require.Equal(t, []byte(name), result.GetMeta().GetTopic().GetTopic())
			require.Equal(t, heads[name], result.GetMeta().GetCursor().GetSequenceId())
			require.EqualValues(t, 1000, result.GetMeta().GetServerNs())
			require.EqualValues(t, 2000, result.GetMeta().GetExpiryNs())
			require.True(t, result.GetMeta().GetIsCommitOrProposal())
			require.Len(t, result.GetMeta().GetMessageHash().GetSha256(), 32)
			require.Equal(t, full, result.Envelope != nil)
			require.True(t, !full || proto.Equal(newest[name], result.GetEnvelope()))
		}
		require.Equal(t, []topic.Topic{packages, group(2), group(1)}, got, "distinct, in the order of first mention, without those that are empty")
	}
	answer, err := r.QueryNewest(t.Context(), &backendv1.QueryNewestRequest{})
	require.NoError(t, err)
	require.Empty(t, answer.GetResults())
}
