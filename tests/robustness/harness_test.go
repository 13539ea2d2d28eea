package robustness_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
	"github.com/xmtp-selfhosted/backend/tests/robustness/fault"
	"github.com/xmtp-selfhosted/backend/tests/robustness/traffic"
)

// binaries are the programs of the roles, built once for all tests.
var binaries string

func TestMain(m *testing.M) {
	code, err := build(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func build(run func() int) (int, error) {
	dir, err := os.MkdirTemp("", "xmtp-roles-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := fault.Build(context.Background(), dir); err != nil {
		return 1, err
	}
	binaries = dir
	return run(), nil
}

// within bounds every wait of these tests.
const within = 2 * time.Minute

// cluster starts a backend of processes, and traffic on it.
func cluster(t *testing.T, options fault.Options) (*fault.Cluster, *traffic.Traffic) {
	t.Helper()
	dir, err := fault.TempDir()
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
			for _, file := range logs {
				content, _ := os.ReadFile(file)
				t.Logf("%s ends with: %s", filepath.Base(file), content[max(0, len(content)-1500):])
			}
		}
		require.NoError(t, os.RemoveAll(dir))
	})
	options.Dir, options.Binaries, options.Publishers, options.Streamers = dir, binaries, 2, 2
	c, err := fault.Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, c.Died())
		require.NoError(t, c.Stop())
	})
	tr, err := traffic.Start(context.WithoutCancel(t.Context()), traffic.Config{
		Endpoint: c.Gateway, Seed: 42, Groups: 12, Publishers: 4, Readers: 1, Streams: 3, StaticStream: 1,
		Pause: 20 * time.Millisecond, Silence: 6 * time.Second,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		tr.StopPublishing()
		_ = tr.Stop()
	})
	acknowledgeMore(t, tr, 50)
	return c, tr
}

// acknowledgeMore waits until so many more publishes were acknowledged.
func acknowledgeMore(t *testing.T, tr *traffic.Traffic, n int) {
	t.Helper()
	target := tr.Recorder.Counts().Acknowledged + n
	require.Eventually(t, func() bool { return tr.Recorder.Counts().Acknowledged >= target }, within, 10*time.Millisecond,
		"%d more publishes were not acknowledged", n)
}

// finish ends the traffic and returns what was seen beside what the server holds.
func finish(t *testing.T, c *fault.Cluster, tr *traffic.Traffic, server *pglocal.Server) *check.History {
	t.Helper()
	tr.StopPublishing()
	require.NoError(t, c.EndPublishing(t.Context(), server))
	table, heads, err := fault.Table(t.Context(), c.DatabaseURL(server))
	require.NoError(t, err)
	settling, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	require.NoError(t, tr.Settle(settling, heads))
	history := tr.Stop()
	history.Table, history.Heads = table, heads
	require.Empty(t, tr.Recorder.Surprises())
	t.Logf("%d rows, %d publishes, %d streams", len(table), len(history.Publishes), len(history.Streams))
	return history
}
