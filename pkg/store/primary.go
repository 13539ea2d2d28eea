package store

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// PrimaryOnly refuses every connection to a standby, as Unavailable; of a URL
// with several hosts the next one is tried. To ask once per connection is enough:
// a server becomes a standby only by a restart, which no connection survives. It
// takes the place of the URL's target_session_attrs, whose read-write no session
// of ForReads is.
func PrimaryOnly(c *pgxpool.Config) { c.ConnConfig.ValidateConnect = refuseStandby }

func refuseStandby(ctx context.Context, conn *pgconn.PgConn) error {
	answer := conn.ExecParams(ctx, `SELECT pg_is_in_recovery()`, nil, nil, nil, binaryFormat).Read()
	if answer.Err != nil {
		return answer.Err
	}
	c := columns{values: answer.Rows[0]}
	if c.bool() {
		return fault.Errorf(fault.Unavailable, "the database is a standby, expected the primary")
	}
	return c.err
}
