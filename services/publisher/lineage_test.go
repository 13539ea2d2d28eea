package publisher_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/metertest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

// fill publishes n messages and returns the highest sequence id.
func (r *role) fill(kit *testkit.Kit, n int) uint64 {
	r.t.Helper()
	var last uint64
	for range n {
		last = max(last, id(r.publish(kit.GroupMessage(kit.Group(), 1))[0]))
	}
	return last
}

func measuredBy(m *metertest.Meter) option {
	return func(_ *publisher.Config, d *publisher.Deps) { d.Metrics = m.Metrics }
}

func sqlOn(t *testing.T, url, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), statement)
	require.NoError(t, err)
}

// An asynchronous replica that lacks the newest commits is promoted: no id that
// was acknowledged is given again (I11).
//
// Proves I11.
func TestPromotionGivesNoIDTwice(t *testing.T) {
	primary, replica := pgtest.OwnCluster(t, nil)
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	kit := testkit.New(60)
	before := startOn(t, primary.URL("postgres"), bus.URL())
	before.fill(kit, 10)
	pgtest.WaitReplayed(t, primary, replica)
	require.NoError(t, replica.Stop(pglocal.Fast)) // what follows is lost
	heard := before.listen()
	last := before.fill(kit, 200)
	old := receive(t, heard, "a notice").Lineage
	before.stop()
	require.NoError(t, primary.Stop(pglocal.Immediate))
	require.NoError(t, replica.Start(t.Context()))
	require.NoError(t, replica.Promote(t.Context()))
	m := metertest.New(t)
	after := startOn(t, replica.URL("postgres"), bus.URL(), measuredBy(m))
	heard = after.listen()
	require.Less(t, after.rows(), 210, "the newest commits are lost")
	require.Greater(t, id(after.publish(kit.GroupMessage(kit.Group(), 1))[0]), last)
	lineage := receive(t, heard, "a notice").Lineage
	require.Equal(t, old.SystemIdentifier, lineage.SystemIdentifier)
	require.Greater(t, lineage.Timeline, old.Timeline)
	require.EqualValues(t, 1, m.Count("xmtp_lineage_changes"))
}

// An older copy of the data directory is put back, under a running publisher.
//
// Proves I11.
func TestARestoredBackupGivesNoIDTwice(t *testing.T) {
	for name, recovery := range map[string]bool{"as it is": false, "with archive recovery": true} {
		t.Run(name, func(t *testing.T) {
			server := pgtest.OwnPrimary(t, nil)
			url := server.URL("postgres")
			require.NoError(t, migrate(t.Context(), url))
			bus, err := natslocal.Start(natslocal.Options{})
			require.NoError(t, err)
			t.Cleanup(bus.Stop)
			kit := testkit.New(61)
			r := startOn(t, url, bus.URL())
			r.fill(kit, 10)
			backup := baseBackup(t, url)
			last := r.fill(kit, 100)
			require.NoError(t, server.Stop(pglocal.Fast))
			restore(t, backup, filepath.Join(server.Dir(), "data"), recovery)
			require.NoError(t, server.Start(t.Context()))
			require.Greater(t, id(r.publish(kit.GroupMessage(kit.Group(), 1))[0]), last)
			require.Equal(t, 11, r.rows())
		})
	}
}

// Even the very first backup, before anything was stored or even tried.
//
// Proves I11.
func TestARestoredEmptyBackupGivesNoIDTwice(t *testing.T) {
	server := pgtest.OwnPrimary(t, nil)
	url := server.URL("postgres")
	require.NoError(t, migrate(t.Context(), url))
	backup := baseBackup(t, url)
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	kit := testkit.New(62)
	r := startOn(t, url, bus.URL())
	last := r.fill(kit, 20)
	require.NoError(t, server.Stop(pglocal.Fast))
	restore(t, backup, filepath.Join(server.Dir(), "data"), false)
	require.NoError(t, server.Start(t.Context()))
	require.Zero(t, r.rows())
	require.Greater(t, id(r.publish(kit.GroupMessage(kit.Group(), 1))[0]), last)
}

// A jump is large enough for all that can have been stored since the last write
// that the restored server remembers.
func TestTheJumpGrowsWithTheAgeOfTheBackup(t *testing.T) {
	server := pgtest.OwnPrimary(t, nil)
	url := server.URL("postgres")
	require.NoError(t, migrate(t.Context(), url))
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	kit, m := testkit.New(63), metertest.New(t)
	r := startOn(t, url, bus.URL(), measuredBy(m))
	last := r.fill(kit, 1)
	const day = 86_400
	sqlOn(t, url, "UPDATE envelopes SET server_ns = server_ns - 86400 * 1000000000::bigint")
	require.NoError(t, server.Restart(t.Context()))
	require.Greater(t, id(r.publish(kit.GroupMessage(kit.Group(), 1))[0]), last+day*50_000)
	require.Zero(t, m.Count("xmtp_lineage_changes"), "a restart is no other history")
}

func baseBackup(t *testing.T, url string) string {
	t.Helper()
	binaries, err := pglocal.Find()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "backup")
	out, err := exec.CommandContext(t.Context(), filepath.Join(binaries.Dir, "pg_basebackup"),
		"--dbname="+url, "--pgdata="+dir, "--wal-method=stream", "--checkpoint=fast").CombinedOutput()
	require.NoError(t, err, string(out))
	return dir
}

// restore puts a copy in the place of a data directory.
func restore(t *testing.T, backup, data string, recovery bool) {
	t.Helper()
	entries, err := os.ReadDir(data)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.RemoveAll(filepath.Join(data, e.Name())))
	}
	out, err := exec.CommandContext(t.Context(), "cp", "-r", backup+"/.", data).CombinedOutput()
	require.NoError(t, err, string(out))
	if recovery {
		require.NoError(t, os.WriteFile(filepath.Join(data, "recovery.signal"), nil, 0o600))
		file, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = file.WriteString("\nrestore_command = 'false'\n")
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	// The directory itself was kept, and with it the server's user.
	out, err = exec.CommandContext(t.Context(), "sh", "-c", `chown -R "$(stat -c %u:%g "$1")" "$1"`, "sh", data).CombinedOutput()
	require.NoError(t, err, string(out))
}
