package doctor_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// shadows are functions that stand before those of PostgreSQL for a session whose
// search path says so: what a server of another version, age or size says.
const shadows = `
CREATE SCHEMA old;
CREATE FUNCTION old.current_setting(name text) RETURNS text LANGUAGE sql STABLE AS
  $$ SELECT CASE name WHEN 'server_version_num' THEN '140009' ELSE pg_catalog.current_setting(name) END $$;
CREATE SCHEMA later;
CREATE FUNCTION later.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT pg_catalog.now() + interval '5 minutes' $$;
CREATE SCHEMA narrow;
CREATE FUNCTION narrow.current_setting(name text) RETURNS text LANGUAGE sql STABLE AS
  $$ SELECT CASE name WHEN 'max_connections' THEN '1' ELSE pg_catalog.current_setting(name) END $$;
CREATE ROLE stranger LOGIN`

// withOption is a URL whose sessions begin with a setting.
func withOption(t *testing.T, from, setting string) string {
	t.Helper()
	parsed, err := url.Parse(from)
	require.NoError(t, err)
	query := parsed.Query()
	query.Set("options", "-c "+setting)
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return parsed.String()
}

func execute(t *testing.T, server *pglocal.Server, statements string) {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = connection.Close(context.Background()) }()
	_, err = connection.Exec(t.Context(), statements)
	require.NoError(t, err)
}

// ofDatabases are the findings about these two that are worth a word.
func ofDatabases(t *testing.T, primary, replica string) []string {
	t.Helper()
	var found []string
	for _, line := range notGood(look(t, map[string]string{"XMTP_PRIMARY_URL": primary, "XMTP_REPLICA_URL": replica}, nil)) {
		if strings.Contains(line, " primary: ") || strings.Contains(line, " replica: ") {
			found = append(found, line)
		}
	}
	return found
}

func TestDatabases(t *testing.T) {
	dir, err := os.MkdirTemp("", "xmtp-doctor-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) // PostgreSQL's own user enters it
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	running := func(server *pglocal.Server, err error) *pglocal.Server {
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, server.Stop(pglocal.Immediate)) })
		return server
	}
	fast := map[string]string{"fsync": "off"}
	primary := running(pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: filepath.Join(dir, "primary"), Settings: fast}))
	_, err = store.Migrate(t.Context(), config.Secret(primary.URL("postgres")))
	require.NoError(t, err)
	execute(t, primary, shadows)
	replica := running(pglocal.StartReplica(t.Context(), primary, pglocal.Options{Dir: filepath.Join(dir, "replica"), Settings: map[string]string{"fsync": "off", "hot_standby_feedback": "off"}}))
	good := primary.URL("postgres")

	t.Run("no feedback", func(t *testing.T) {
		require.Equal(t, []string{"WRONG replica: hot_standby_feedback is off: a long read and a vacuum stop its replay"}, ofDatabases(t, good, replica.URL("postgres")))
	})
	t.Run("rare feedback", func(t *testing.T) {
		other := running(pglocal.StartReplica(t.Context(), primary, pglocal.Options{Dir: filepath.Join(dir, "slow"), Settings: map[string]string{"fsync": "off", "wal_receiver_status_interval": "2"}}))
		require.Equal(t, []string{"warning replica: wal_receiver_status_interval is 2 s, expected 1 s: old versions of busy rows stay that long and slow publishes down"}, ofDatabases(t, good, other.URL("postgres")))
	})
	for name, c := range map[string]struct{ url, expect string }{
		"an old version":          {withOption(t, good, "search_path=old,pg_catalog,public"), "WRONG primary: PostgreSQL 14 is too old"},
		"answers before the disk": {withOption(t, good, "synchronous_commit=off"), "WRONG primary: synchronous_commit is off: a crash loses publishes that were acknowledged"},
		"few connections":         {withOption(t, good, "search_path=narrow,pg_catalog,public"), " of 1 connections are in use"},
		"a user without rights":   {strings.Replace(good, "postgres@", "stranger@", 1), "WRONG primary: a question failed: ERROR: permission denied for table goose_db_version"},
	} {
		t.Run(name, func(t *testing.T) {
			found := ofDatabases(t, c.url, "")
			require.Len(t, found, 1)
			require.Contains(t, found[0], c.expect)
		})
	}
	t.Run("a busy primary as its own replica", func(t *testing.T) {
		writing, stop := context.WithCancel(t.Context())
		var load errgroup.Group
		load.Go(func() error {
			connection, err := pgx.Connect(t.Context(), good)
			if err != nil {
				return err
			}
			defer func() { _ = connection.Close(context.Background()) }()
			for writing.Err() == nil {
				if _, err := connection.Exec(t.Context(), "SELECT pg_logical_emit_message(false, 'doctor', 'x')"); err != nil {
					return err
				}
			}
			return nil
		})
		found := ofDatabases(t, good, good)
		stop()
		require.NoError(t, load.Wait())
		require.Equal(t, []string{"warning replica: it is no standby; it is the primary itself"}, found)
	})
	t.Run("a transaction that stays open", func(t *testing.T) {
		held, err := pgx.Connect(t.Context(), good)
		require.NoError(t, err)
		defer func() { _ = held.Close(context.Background()) }()
		_, err = held.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()")
		require.NoError(t, err)
		found := ofDatabases(t, withOption(t, good, "search_path=later,pg_catalog,public"), "")
		require.Len(t, found, 1)
		require.Contains(t, found[0], "warning primary: a transaction has been open for 5m")
	})
	t.Run("a replica of another primary", func(t *testing.T) {
		other := running(pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: filepath.Join(dir, "other"), Settings: fast}))
		require.Equal(t, []string{"WRONG replica: it belongs to another cluster than the primary"}, ofDatabases(t, good, other.URL("postgres")))
	})
	t.Run("a replica that is behind", func(t *testing.T) {
		execute(t, replica, "SELECT pg_wal_replay_pause()")
		execute(t, primary, "SELECT pg_logical_emit_message(false, 'doctor', repeat('x', 100 << 20))")
		require.Regexp(t, `warning replica: it is \d+ MiB behind the primary`, strings.Join(ofDatabases(t, good, replica.URL("postgres")), "\n"))
		execute(t, replica, "SELECT pg_wal_replay_resume()")
	})
	t.Run("two primaries", func(t *testing.T) {
		require.NoError(t, replica.Promote(t.Context()))
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			require.Equal(c, []string{"WRONG replica: it is no standby: it takes writes of its own"}, ofDatabases(t, good, replica.URL("postgres")))
		}, time.Minute, 100*time.Millisecond)
	})
}
