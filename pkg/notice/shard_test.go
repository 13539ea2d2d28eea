package notice

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// The shard of a topic is part of the wire: another value is another protocol.
func TestShardsArePinned(t *testing.T) {
	require.Equal(t, 256, Shards)
	for name, shard := range map[topic.Topic]int{
		"\x00sixteen bytes...":                  191,
		"\x01thirty-two bytes as a key has....": 116,
	} {
		require.Equal(t, shard, shardOf(name), "%q", name)
	}
	require.Equal(t, "xmtp.org=2Eexample-1_=C3=A4.notice.255", subjects("org.example-1_ä")[255])
}
