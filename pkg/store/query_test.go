package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
