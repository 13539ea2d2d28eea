package robustness_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/tests/robustness"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
	"github.com/xmtp-selfhosted/backend/tests/robustness/fault"
)

// With a synchronous standby the primary may die at any moment: what was
// acknowledged is on the replica that takes over.
//
// Proves API-016.
func TestFailoverToASynchronousReplicaLosesNothing(t *testing.T) {
	c, tr := cluster(t, fault.Options{
		// Turned on below, once the replica is there; after the failover it is alone.
		ReplicaSettings: map[string]string{"synchronous_standby_names": ""},
	})
	require.NoError(t, c.Exec(t.Context(), c.Primary.URL("postgres"), "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"))
	awaitSync(t, c.Primary.URL("postgres"))
	// What was stored before was asynchronous; the replica has it by now.
	acknowledgeMore(t, tr, 200)
	require.NoError(t, c.Primary.Kill())
	require.NoError(t, c.FailOver(t.Context()))
	acknowledgeMore(t, tr, 200)
	history := finish(t, c, tr, c.Replica)
	require.Empty(t, check.All(history))
}

func awaitSync(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	require.Eventually(t, func() bool {
		var synchronous bool
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`).Scan(&synchronous))
		return synchronous
	}, within, 10*time.Millisecond, "the replica does not become synchronous")
}

// Without one, the newest acknowledged publishes die with the primary. The test
// knows which; what matters is that clients whose cursors are among the lost ids
// miss nothing that is stored afterwards, and that no lost id comes back.
//
// Proves I11.
func TestFailoverToALaggingReplicaReusesNothing(t *testing.T) {
	c, tr := cluster(t, fault.Options{})
	c.Proxies[fault.ReplicaToPrimary].Cut()
	acknowledgeMore(t, tr, 200)
	require.NoError(t, c.Primary.Kill())
	before := tr.Recorder.Highest()
	require.NoError(t, c.FailOver(t.Context()))
	acknowledgeMore(t, tr, 200)
	history := finish(t, c, tr, c.Replica)

	history.Lost = history.Missing(func(topic.SequenceID) bool { return true })
	require.NotEmpty(t, history.Lost, "the replica lagged, so something must be missing")
	t.Logf("the failover lost %d acknowledged envelopes, of which %d had been delivered; the highest id before it was %d",
		len(history.Lost), deliveredOf(history), before)
	for id := range history.Lost {
		require.Less(t, id, before+margin, "an envelope that was stored after the failover is missing")
	}
	require.Empty(t, check.All(history))
	after := 0
	for _, row := range history.Table {
		if row.Meta.SequenceID > before {
			after++
			require.Greater(t, row.Meta.SequenceID, before+margin, "ids go on far from where they were")
		}
	}
	require.NotZero(t, after)
}

// Failovers that lose envelopes, one after the other, while clients send the same
// identity updates again and again. An update that was found stored on the old
// primary must not be stored unseen on the new one: afterwards every inbox is what
// its log says and takes further updates.
func TestNoInboxIsDeadAfterFailovers(t *testing.T) {
	r, err := robustness.Run(t.Context(), robustness.Options{Seed: 5, Duration: 40 * time.Second, Binaries: binaries, Out: lines{t}, Only: []string{fault.Servers}})
	require.NoError(t, err)
	require.NotZero(t, r.Lost, "the replica lagged, so something must be missing")
	require.Greater(t, r.Counts.Inboxes, 20)
	require.Empty(t, r.Findings())
}

// margin is above what was on its way when the primary died, and far below the
// distance that ids are moved on.
const margin topic.SequenceID = 10_000

func deliveredOf(h *check.History) (count int) {
	for _, s := range h.Streams {
		for _, e := range s.Events {
			if h.Lost[e.Envelope.Meta.SequenceID] {
				count++
			}
		}
	}
	return count
}
