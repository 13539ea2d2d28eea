package store

import (
	"context"
	_ "embed"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

//go:embed sql/lineage_server.sql
var lineageServerSQL string

// Era counts the servers that a publisher has had, from 1; 0 is before the first
// connection. It rises when a connection leads to another history than the one
// before, or to a server that was started anew, perhaps from a copy. What was
// read in one era says nothing about what may be stored in another.
type Era uint64

// Era is that of the newest connection.
func (p *Publisher) Era() Era {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.era
}

// standing is what a connection leads to: it does not change, since a server
// becomes a primary or a standby of another only when its connections have ended or
// were never taken.
type standing struct {
	era    Era
	server incarnation
	// checked says that the sequence belongs to the lineage of the server.
	checked bool
}

// standingKey is where a connection keeps its standing.
const standingKey = "xmtp-standing"

func standingOf(conn *pgx.Conn) *standing {
	here, _ := conn.PgConn().CustomData()[standingKey].(*standing)
	return here
}

// admit looks at a new connection before its first use.
func (p *Publisher) admit(ctx context.Context, conn *pgx.Conn) error {
	here := &standing{}
	var durability, ours string
	err := conn.QueryRow(ctx, lineageServerSQL).Scan(&here.server.SystemIdentifier, &here.server.Timeline, &here.server.started, &durability, &ours)
	if err != nil {
		return explainStandby(err)
	}
	p.mu.Lock()
	replaced := p.era > 0 && !p.server.equal(here.server)
	if replaced || p.era == 0 {
		p.server = here.server
		p.era++
	}
	here.era, p.durability = p.era, durability
	p.mu.Unlock()
	conn.PgConn().CustomData()[standingKey] = here
	if replaced { // the other connections lead to what was there before
		p.pool.Reset()
	}
	return nil
}

// CheckServer fails as Unavailable while the server does not take writes, whatever
// connection to it is asked. It also notices when the operator changes whether
// a commit waits for the disk: connections of before keep what they began with.
func (p *Publisher) CheckServer(ctx context.Context) error {
	return p.on(ctx, "look at the primary", func(conn *pgx.Conn, _ *standing) error {
		var readOnly bool
		var durability string
		err := conn.QueryRow(ctx, `SELECT current_setting('transaction_read_only')::boolean, reset_val FROM pg_settings WHERE name = 'synchronous_commit'`).
			Scan(&readOnly, &durability)
		if err != nil {
			return err
		}
		p.mu.Lock()
		changed := p.durability != durability
		p.durability = durability
		p.mu.Unlock()
		if changed {
			p.pool.Reset()
		}
		if readOnly {
			return errTakesNoWrites
		}
		return nil
	})
}

var (
	errReplaced      = fault.Errorf(fault.Unavailable, "the database was replaced by another server just now")
	errTakesNoWrites = fault.Errorf(fault.Unavailable, "the database takes no writes, expected the primary")
)

// awayError marks a failure of the database as a whole: it is not reachable, or not the
// one that it was. What was read from it before says nothing about the next one.
type awayError struct{ error }

func (e awayError) Unwrap() error { return e.error }

// IsAway says that an operation of a publisher failed since the database was lost,
// could not be reached, or is another one by now.
func IsAway(err error) bool { return errors.As(err, new(awayError)) }

// on runs do on a connection to the server of the present era.
func (p *Publisher) on(ctx context.Context, doing string, do func(*pgx.Conn, *standing) error) error {
	err := p.pool.with(ctx, doing, func(pooled *pgxpool.Conn) error {
		conn := pooled.Conn()
		here := standingOf(conn)
		if here.era != p.Era() {
			p.pool.Reset()
			return errReplaced
		}
		err := do(conn, here)
		switch {
		case err == nil:
			return nil
		case takesNoWrites(err):
			// The server changed behind the connection, as some poolers allow.
			p.pool.Reset()
			return explainStandby(err)
		case conn.IsClosed() && ctx.Err() == nil:
			// What ended this connection has probably ended the others.
			p.pool.Reset()
		}
		return err
	})
	if err != nil && fault.KindOf(err) == fault.Unavailable && !isConflict(err) {
		return awayError{err}
	}
	return err
}

func isConflict(err error) bool { return LostItsLocks(err) || isSQLState(err, sqlSerializationFailure) }

// SQLSTATEs of a server that takes no writes, to what a publisher sends: a standby,
// or a primary whose operator made it read-only.
const (
	sqlReadOnlyTransaction    = "25006" // to a statement that writes
	sqlNotInPrerequisiteState = "55000" // to what is about WAL or transaction ids
	sqlFeatureNotSupported    = "0A000" // to BEGIN READ WRITE
)

func takesNoWrites(err error) bool {
	return errors.Is(err, errTakesNoWrites) || isSQLState(err, sqlReadOnlyTransaction) || isSQLState(err, sqlNotInPrerequisiteState) || isSQLState(err, sqlFeatureNotSupported)
}

func explainStandby(err error) error {
	if takesNoWrites(err) && !errors.Is(err, errTakesNoWrites) {
		return fault.Wrap(fault.Unavailable, err, "%s", errTakesNoWrites.Text())
	}
	return err
}
