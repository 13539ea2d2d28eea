package pglocal_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// The second start of a dev stack: both servers come back, the replica from its own data and by another port.
func TestReplicaGoesOnWithItsData(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	primaryDir, replicaDir := filepath.Join(dir, "primary"), filepath.Join(dir, "replica")
	first := primary(t, pglocal.Options{Dir: primaryDir})
	second := replica(t, first, pglocal.Options{Dir: replicaDir})
	marker := filepath.Join(second.Dir(), "data", "marker")
	require.NoError(t, os.WriteFile(marker, nil, 0o644))
	require.NoError(t, second.Stop(pglocal.Fast))
	run(t, first, "CREATE TABLE missed AS SELECT 'one' AS v")
	require.NoError(t, first.Stop(pglocal.Fast))

	first = primary(t, pglocal.Options{Dir: primaryDir})
	second = replica(t, first, pglocal.Options{Dir: replicaDir})
	require.FileExists(t, marker, "the replica was copied again")
	run(t, first, "UPDATE missed SET v = 'two'")
	eventually(t, second, "SELECT v FROM missed", "two")
}

func TestReplicaThatCannotFollowIsCopiedAgain(t *testing.T) {
	t.Parallel()
	cases := map[string]func(t *testing.T, first, second *pglocal.Server) *pglocal.Server{
		"promoted": func(t *testing.T, first, second *pglocal.Server) *pglocal.Server {
			require.NoError(t, second.Promote(t.Context()))
			run(t, second, "CREATE TABLE stray AS SELECT 1")
			return first
		},
		"away for too long": func(t *testing.T, first, second *pglocal.Server) *pglocal.Server {
			require.NoError(t, second.Stop(pglocal.Fast))
			run(t, first, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
			for range 3 {
				run(t, first, "SELECT pg_logical_emit_message(true, '', 'x')")
				run(t, first, "SELECT pg_switch_wal()")
				run(t, first, "CHECKPOINT")
			}
			return first
		},
		"another primary": func(t *testing.T, first, _ *pglocal.Server) *pglocal.Server {
			require.NoError(t, first.Kill())
			return primary(t, pglocal.Options{Dir: folder(t)})
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			first := primary(t, pglocal.Options{Dir: folder(t)})
			second := replica(t, first, pglocal.Options{Dir: dir})
			first = change(t, first, second)
			require.NoError(t, second.Stop(pglocal.Fast))
			run(t, first, "CREATE TABLE copied AS SELECT 'one' AS v")
			second = replica(t, first, pglocal.Options{Dir: dir})
			eventually(t, second, "SELECT v FROM copied", "one")
			require.Equal(t, "0", query(t, second, "SELECT count(*)::text FROM pg_class WHERE relname = 'stray'"))
		})
	}
}

func TestReplicaReconnectsToARestartedPrimary(t *testing.T) {
	t.Parallel()
	first := primary(t, pglocal.Options{Dir: folder(t)})
	second := replica(t, first, pglocal.Options{Dir: folder(t)})
	require.NoError(t, first.Kill())
	require.NoError(t, first.Start(t.Context()))
	run(t, first, "CREATE TABLE later AS SELECT 'one' AS v")
	eventually(t, second, "SELECT count(*)::text FROM pg_class WHERE relname = 'later'", "1")
}
