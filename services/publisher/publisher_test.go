package publisher_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Proves API-001, API-010, API-020, API-021, API-033, API-045, API-046, API-065,
// API-163, I7.
func TestEveryKindIsStoredWithItsMetadata(t *testing.T) {
	r := start(t)
	kit := testkit.New(1)
	group, client, now := kit.Group(), kit.Client(), time.Now()
	commit := kit.Commit(group, 1)
	const quarter = 90 * 24 * time.Hour
	cases := []struct {
		name     string
		envelope *backendv1.ClientEnvelope
		topic    string
		expires  bool
		commit   bool
	}{
		{"group message", kit.GroupMessage(group, 100), string(group.Topic()), true, false},
		{"commit", commit, string(group.Topic()), false, true},
		{"proposal", kit.Proposal(group, 1), string(group.Topic()), false, true},
		{"welcome", kit.Welcome(client.Installation.PublicKey(), 50), string(client.WelcomeTopic()), true, false},
		{"welcome pointer", kit.WelcomePointer(client.Installation.PublicKey()), string(client.WelcomeTopic()), true, false},
		{"identity update", client.Registration(now), string(client.Topic()), false, false},
		{"key package", client.KeyPackage(now), string(client.KeyPackageTopic()), true, false},
		{"commit-log entry", kit.CommitLogEntry(group, 2, 1), string(group.CommitLogTopic()), false, false},
	}
	heard := r.listen()
	heads := map[string]uint64{}
	var last uint64
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			meta := r.publish(c.envelope)[0]
			canonical, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.envelope)
			require.NoError(t, err)
			hash := sha256.Sum256(canonical)
			require.Equal(t, hash[:], meta.GetMessageHash().GetSha256())
			require.Equal(t, c.topic, string(meta.GetTopic().GetTopic()))
			require.Equal(t, c.commit, meta.GetIsCommitOrProposal())
			require.Greater(t, meta.GetCursor().GetSequenceId(), last)
			last = meta.GetCursor().GetSequenceId()
			require.InDelta(t, now.UnixNano(), meta.GetServerNs(), float64(time.Minute))
			if c.expires {
				require.Equal(t, meta.GetServerNs()+uint64(quarter), meta.GetExpiryNs())
			} else {
				require.Zero(t, meta.GetExpiryNs())
			}
			var stored []byte
			require.NoError(t, r.db.QueryRow(t.Context(), "SELECT payload FROM envelopes WHERE topic = $1 AND sequence_id = $2",
				[]byte(c.topic), int64(last)).Scan(&stored))
			require.Equal(t, canonical, stored)

			n := receive(t, heard, "a notice")
			require.Equal(t, c.topic, string(n.Topic))
			require.EqualValues(t, last, n.SequenceID)
			require.EqualValues(t, heads[c.topic], n.Previous)
			require.NotZero(t, n.Lineage.SystemIdentifier)
			heads[c.topic] = last
			var server backendv1.ServerEnvelope
			require.NoError(t, proto.Unmarshal(n.Envelope, &server))
			require.True(t, proto.Equal(meta, server.GetMeta()))
			require.True(t, proto.Equal(c.envelope, server.GetEnvelope()))

			require.True(t, proto.Equal(meta, r.publish(c.envelope)[0]), "a duplicate has the stored metadata")
		})
	}
	require.Equal(t, len(cases), r.rows())
	require.Empty(t, heard, "duplicates are not announced")
}
