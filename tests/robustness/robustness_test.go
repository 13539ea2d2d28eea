package robustness_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/tests/robustness"
	"github.com/xmtp-selfhosted/backend/tests/robustness/fault"
)

// seedVariable repeats a failed run: XMTP_CHAOS_SEED=… go test -run TestChaosShort
const seedVariable = "XMTP_CHAOS_SEED"

// lines passes on what a campaign says.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// All parts break at random for two minutes, and every promise is kept. A finding
// prints the seed that repeats it.
//
// Proves I1, I2, I3, I4, I6.
func TestChaosShort(t *testing.T) {
	seed := uint64(time.Now().UnixNano() % 1_000_000)
	if given := os.Getenv(seedVariable); given != "" {
		require.NoError(t, json.Unmarshal([]byte(given), &seed))
	}
	r, err := robustness.Run(t.Context(), robustness.Options{Seed: seed, Duration: 2 * time.Minute, Binaries: binaries, Out: lines{t}})
	require.NoError(t, err)
	require.NoError(t, r.Markdown(lines{t}))
	require.Greater(t, r.Counts.Delivered, r.Rows, "there are six streams")
	require.Empty(t, r.Findings(), "again: %s=%d", seedVariable, seed)
}

// A streamer that does not look at the previous head of a notice skips envelopes
// whenever a notice is lost. The checker has to notice.
//
// Proves I6.
func TestTheCheckerNoticesABrokenRule(t *testing.T) {
	const rule = "carries && previous <= r.floor && e.admitLive(r, envelope)"
	root, err := fault.Root(t.Context())
	require.NoError(t, err)
	source := filepath.Join(root, "services/streamer/internal/delivery/engine.go")
	content, err := os.ReadFile(source)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(content), rule), "the rule moved: adapt this test")

	dir := t.TempDir()
	broken := filepath.Join(dir, "engine.go")
	require.NoError(t, os.WriteFile(broken, []byte(strings.Replace(string(content), rule, "carries && e.admitLive(r, envelope)", 1)), 0o644))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {source: broken}})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, overlay, 0o644))

	r, err := robustness.Run(t.Context(), robustness.Options{
		Seed: 5, Duration: 15 * time.Second, Out: lines{t},
		BuildArguments: []string{"-overlay", file},
		Only:           []string{fault.NATS, fault.PublishersToNATS, fault.StreamersToNATS},
		// Seldom sweeps leave the loss of notices unnoticed for longer.
		Environment:  map[string]string{"XMTP_SWEEP_INTERVAL": "2s"},
		SettleWithin: 20 * time.Second,
	})
	require.NoError(t, err)
	require.NotEmpty(t, r.Violations, "the broken rule was not noticed")
	for _, violation := range r.Violations {
		require.Equal(t, "I5/I6", violation.Invariant, violation.What)
	}
	t.Logf("noticed: %s", r.Violations[0])
}

func TestTheScheduleFollowsFromTheSeed(t *testing.T) {
	one, two, other := fault.Plan(7, time.Hour), fault.Plan(7, time.Hour), fault.Plan(8, time.Hour)
	require.Equal(t, one, two)
	require.NotEqual(t, one, other)
	seen := map[string]bool{}
	for i, f := range one {
		seen[f.Target+" "+f.Kind] = true
		require.LessOrEqual(t, f.At+f.For, time.Hour)
		overlapping := 0
		for _, earlier := range one[:i] {
			if earlier.At+earlier.For > f.At {
				overlapping++
				require.NotEqual(t, earlier.Target, f.Target, "two faults of one part at once")
			}
		}
		require.Less(t, overlapping, 2)
	}
	require.Len(t, seen, 57, "every kind of fault on every part comes up in an hour")
	for _, f := range fault.Plan(7, time.Hour, fault.NATS) {
		require.Equal(t, fault.NATS, f.Target)
	}
}
