package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// A caller that goes away costs the database no connection: neither when the
// read is short and just ends, nor when the server has to be told.
func TestACancelledReadKeepsItsConnection(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	cfg := poolConfig
	cfg.MaxConns = 1
	pool, err := store.Open(secret(db.PrimaryURL), cfg, store.ForReads()...)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	process, err := store.SleepOnConnection(t.Context(), pool, "0")
	require.NoError(t, err)
	for seconds, patience := range map[string]time.Duration{"0.05": 10 * time.Millisecond, "20": 500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		begun := time.Now()
		_, err := store.SleepOnConnection(ctx, pool, seconds)
		cancel()
		if seconds == "20" { // there was time to take the connection
			require.Equal(t, fault.Late, fault.KindOf(err), "%v", err)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.Less(t, time.Since(begun), 10*time.Second)
		again, err := store.SleepOnConnection(t.Context(), pool, "0")
		require.NoError(t, err)
		require.Equal(t, process, again, "the same server process after %s s", seconds)
	}
}

// A statement over the server's own time limit is late; the connection stays.
func TestAStatementOverItsTimeLimitIsLate(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	cfg := poolConfig
	cfg.MaxConns, cfg.StatementTimeout = 1, time.Second
	pool, err := store.Open(secret(db.PrimaryURL), cfg, store.ForReads()...)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = store.SleepOnConnection(t.Context(), pool, "10")
	require.Equal(t, fault.Late, fault.KindOf(err), "%v", err)
	_, err = store.SleepOnConnection(t.Context(), pool, "0")
	require.NoError(t, err)
}

// A read whose session was ended is run on another one, also when all of them were.
func TestAReadOutlivesItsSession(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	pool, err := store.Open(secret(db.PrimaryURL), poolConfig, store.ForReads()...)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	operator := connect(t, db.PrimaryURL)
	for range 3 {
		var sessions errgroup.Group
		for range poolConfig.MaxConns {
			sessions.Go(func() error { _, err := store.SleepOnConnection(t.Context(), pool, "0.1"); return err })
		}
		require.NoError(t, sessions.Wait())
		end(t, operator)
		_, err = store.SleepOnConnection(t.Context(), pool, "0")
		require.NoError(t, err)
		end(t, operator)
		require.NoError(t, pool.CheckSchema(t.Context()))
	}
}

// end ends all sessions of the test's pools.
func end(t *testing.T, operator *pgx.Conn) {
	t.Helper()
	var ended int
	require.NoError(t, operator.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
		WHERE application_name = 'xmtp-backend' AND datname = current_database()`).Scan(&ended))
	require.Positive(t, ended)
}
