package recording_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/recording"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// The figures are those that the recording's own README states.
func TestTheRecordingIsWhole(t *testing.T) {
	session, err := recording.Load()
	require.NoError(t, err)
	require.Len(t, session.Payloads, 386)

	count, distinct, chains := map[topic.Kind]int{}, map[string]bool{}, 0
	for _, p := range session.Payloads {
		count[p.Topic.Kind()]++
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.Envelope)
		require.NoError(t, err)
		distinct[string(encoded)] = true
		if p.NeedsChain {
			chains++
		}
	}
	require.Equal(t, map[topic.Kind]int{
		topic.GroupMessage: 167, topic.Welcome: 64, topic.KeyPackage: 45, topic.IdentityUpdate: 45, topic.CommitLog: 65,
	}, count)
	require.Len(t, distinct, 381)
	require.Positive(t, chains)

	total := 0
	for _, request := range session.Requests() {
		require.NotEmpty(t, request)
		total += len(request)
	}
	require.Equal(t, 386, total)
}
