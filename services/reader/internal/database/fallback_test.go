package database_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/database"
)

// set is servers that nobody asks anything: what becomes of a read is up to the test.
func set(t *testing.T, name string) *database.Set {
	t.Helper()
	cfg := store.PoolConfig{MaxConns: 1, ConnectTimeout: time.Second, AcquireTimeout: time.Second, StatementTimeout: time.Second}
	made, err := database.Open(name, []config.Secret{"postgres://127.0.0.1:1/none"}, database.Config{ProbeInterval: time.Hour, ProbeTimeout: time.Second},
		cfg, nil, func(string, error) {})
	require.NoError(t, err)
	t.Cleanup(made.Close)
	return made
}

var errAway = fault.Errorf(fault.Unavailable, "away")

// As many reads as there are places go to the second set; one more waits for a place,
// and not for ever.
func TestAFallbackIsBounded(t *testing.T) {
	const places = 3
	for _, patience := range []time.Duration{time.Millisecond, time.Hour} {
		f := database.NewFallback(set(t, "replica"), set(t, "primary"), places, patience)
		entered, leave := make(chan struct{}, places+1), make(chan struct{})
		// read fails on the first set and stays on the second.
		read := func() error {
			attempt := 0
			return f.Read(t.Context(), func(context.Context, *store.Pool) error {
				if attempt++; attempt == 1 {
					return errAway
				}
				entered <- struct{}{}
				<-leave
				return nil
			})
		}
		var reads errgroup.Group
		for range places {
			reads.Go(read)
		}
		for range places {
			<-entered
		}
		if patience == time.Millisecond {
			err := read()
			require.Equal(t, fault.Unavailable, fault.KindOf(err))
			require.ErrorIs(t, err, store.ErrBusy)
		} else {
			reads.Go(read)
		}
		require.Empty(t, entered)
		close(leave)
		require.NoError(t, reads.Wait())
	}
}

// Only servers that are away are helped.
func TestWhatDoesNotFallBack(t *testing.T) {
	f := database.NewFallback(set(t, "replica"), set(t, "primary"), 1, time.Hour)
	for _, failure := range []error{
		nil,
		fault.Errorf(fault.TooLong, "too long"),
		fault.Errorf(fault.Late, "late"),
		fault.Wrap(fault.Unavailable, store.ErrBusy, "busy"),
	} {
		attempts := 0
		err := f.Read(t.Context(), func(context.Context, *store.Pool) error { attempts++; return failure })
		require.Equal(t, failure, err)
		require.Equal(t, 1, attempts)
	}
	ctx, cancel := context.WithCancel(t.Context())
	attempts := 0
	require.Error(t, f.Read(ctx, func(context.Context, *store.Pool) error {
		attempts++
		cancel()
		return errAway
	}))
	require.Equal(t, 1, attempts)
}
