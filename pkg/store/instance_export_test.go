package store

import (
	"context"
	"strconv"
)

// CancelledByReplay runs a statement whose first n runs end with the error that
// the replay of a standby gives to a query in its way.
func CancelledByReplay(ctx context.Context, p *InstancePool, n int) error {
	runs := 0
	return p.onInstance(ctx, func() error {
		return p.Pool.repeatedly(ctx, func() error {
			runs++
			conn, err := p.pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			raise := "SELECT 1"
			if runs <= n {
				raise = "DO $$ BEGIN RAISE EXCEPTION 'run " + strconv.Itoa(runs) + "' USING ERRCODE = '" + sqlSerializationFailure + "'; END $$"
			}
			_, err = conn.Exec(ctx, raise)
			return classify(err, "run")
		})
	})
}

// ReadSettings are the settings of every session that only reads.
func ReadSettings() map[string]string { return readSettings }
