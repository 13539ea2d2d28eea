package delivery

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// longTopics are of the longest kind, each in memory of its own.
func longTopics(n int) []Add {
	adds := make([]Add, n)
	for i := range adds {
		adds[i].Topic = topic.Topic(fmt.Sprintf("\x01%032d", i))
	}
	return adds
}

// maxRegistrationBytes is the promise of the project's acceptance criteria.
const maxRegistrationBytes = 300

// TestMemoryPerRegistration measures the worst case: topics that no other stream
// has, of the longest kind, names and maps included.
func TestMemoryPerRegistration(t *testing.T) {
	const topics = 100_000
	config := testConfig()
	config.SessionBytes, config.BudgetBytes = 16<<20, 64<<20
	r := newRig(t, config)
	before := heap()
	s := r.open()
	r.update(s, Update{Adds: longTopics(topics)})
	r.next(s)
	r.next(s)
	per := float64(heap()-before) / topics
	t.Logf("%.0f bytes per registration", per)
	require.Equal(t, topics, s.Registered())
	require.Less(t, per, float64(maxRegistrationBytes))
	runtime.KeepAlive(r)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
