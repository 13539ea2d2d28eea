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

// SleepOnConnection runs a statement of the given length as a read and returns
// the server process that ran it.
func SleepOnConnection(ctx context.Context, p *Pool, seconds string) (process int32, err error) {
	s := statement{"sleep " + seconds, "SELECT pg_backend_pid() FROM pg_sleep(" + seconds + ")"}
	err = p.read(ctx, s, nil, func() {}, func(values [][]byte) error {
		c := columns{values: values}
		process = c.int32()
		return c.err
	})
	return process, err
}
