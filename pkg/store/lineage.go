package store

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/lineage_recorded.sql
var lineageRecordedSQL string

//go:embed sql/lineage_record.sql
var lineageRecordSQL string

//go:embed sql/lineage_jump.sql
var lineageJumpSQL string

// Lineage is the history of a cluster that sequence ids belong to.
type Lineage struct {
	SystemIdentifier int64
	Timeline         int32
}

// The distance that the sequence is moved on: leastJump, and for each second since
// the last write that the server remembers jumpPerSecond, several times what one
// primary can store. So ids given out after a backup was taken stay below, however
// old the backup is, and however often it is put back. At this rate the sequence
// lasts three million years.
const (
	leastJump     = 1_000_000
	jumpPerSecond = 100_000
)

// lineageLockTimeout is how long a connection waits while another moves the
// sequence on.
const lineageLockTimeout = 5 * time.Second

// incarnation is a lineage and the start of its server. The start matters since
// a copy of the data directory that is put back keeps identifier and timeline.
type incarnation struct {
	Lineage
	started time.Time
}

// checkLineage runs before the first publish of a connection. If the server is not
// the one that the sequence was last used on, the sequence is moved on, so that no id
// that a client may have seen is given again (invariant I11).
func (p *Publisher) checkLineage(ctx context.Context, conn *pgx.Conn, here *standing) error {
	if here.checked {
		return nil
	}
	recorded, err := readLineage(ctx, conn)
	if err != nil {
		return err
	}
	if !recorded.equal(here.server) {
		if err := p.moveOn(ctx, conn, here.server); err != nil {
			return err
		}
	}
	here.checked = true
	return nil
}

func (i incarnation) equal(other incarnation) bool {
	return i.Lineage == other.Lineage && i.started.Equal(other.started)
}

// readLineage returns the zero value when none is recorded.
func readLineage(ctx context.Context, conn *pgx.Conn) (incarnation, error) {
	var recorded incarnation
	err := conn.QueryRow(ctx, lineageRecordedSQL).Scan(&recorded.SystemIdentifier, &recorded.Timeline, &recorded.started)
	if errors.Is(err, pgx.ErrNoRows) {
		return incarnation{}, nil
	}
	return recorded, err
}

// moveOn advances the sequence once, whoever finds the change first.
func (p *Publisher) moveOn(ctx context.Context, conn *pgx.Conn, server incarnation) error {
	moved := false
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// Others wait here and then find the work done, longer than for a topic.
		if _, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", milliseconds(lineageLockTimeout)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "LOCK TABLE lineage IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
		recorded, err := readLineage(ctx, conn)
		if err != nil || recorded.equal(server) {
			return err
		}
		// A database without a record is new, or a copy from before the first publish.
		var known *time.Time
		if recorded != (incarnation{}) {
			known, moved = &recorded.started, recorded.Lineage != server.Lineage
		}
		if _, err := tx.Exec(ctx, lineageJumpSQL, leastJump, jumpPerSecond, known); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, lineageRecordSQL, server.SystemIdentifier, server.Timeline, server.started)
		return err
	})
	if err == nil && moved && p.changed != nil {
		p.changed(ctx)
	}
	return err
}
