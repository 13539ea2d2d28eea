// Package store is the one user of PostgreSQL: the schema, the connection
// pools, the publish transaction, the reads of the reader and the streamer.
// Every failure that leaves it is a fault with a plain text; SQLSTATEs and
// driver texts stay inside.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// PoolConfig bounds one pool of connections.
type PoolConfig struct {
	// MaxConns is how many connections one pool opens at most.
	MaxConns int32 `env:"DB_MAX_CONNS" envDefault:"20"`
	// ConnectTimeout bounds the opening of one connection.
	ConnectTimeout time.Duration `env:"DB_CONNECT_TIMEOUT" envDefault:"3s"`
	// AcquireTimeout bounds the wait for a free connection; past it the call is
	// Unavailable.
	AcquireTimeout time.Duration `env:"DB_ACQUIRE_TIMEOUT" envDefault:"3s"`
	// StatementTimeout is the server's own bound on one statement.
	StatementTimeout time.Duration `env:"DB_STATEMENT_TIMEOUT" envDefault:"10s"`
}

// Validate names each variable that is out of range.
func (c PoolConfig) Validate() error {
	var errs []error
	if c.MaxConns < 1 {
		errs = append(errs, fmt.Errorf("XMTP_DB_MAX_CONNS is %d, expected at least 1", c.MaxConns))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"DB_CONNECT_TIMEOUT", c.ConnectTimeout},
		{"DB_ACQUIRE_TIMEOUT", c.AcquireTimeout},
		{"DB_STATEMENT_TIMEOUT", c.StatementTimeout},
	} {
		if d.value < time.Millisecond {
			errs = append(errs, fmt.Errorf("XMTP_%s is %v, expected at least 1ms", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// Pool is a bounded set of connections to one server. It connects lazily: a
// server that is away at start does not stop a role, its calls are Unavailable.
type Pool struct {
	pool    *pgxpool.Pool
	acquire time.Duration
	// answer is how long a read waits for the server: a little longer than the
	// server's own limit, so that one that vanished is given up.
	answer time.Duration
	// sessions is how many connections there are at most.
	sessions int32
	meter    meter
}

// Option changes how a pool connects.
type Option func(*pgxpool.Config)

// WithSetting sets a run-time parameter on every session.
func WithSetting(name, value string) Option {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }
}

// WithEachConnection runs check on every new connection before its first use;
// an error refuses the connection.
func WithEachConnection(check func(context.Context, *pgx.Conn) error) Option {
	return func(c *pgxpool.Config) { c.AfterConnect = check }
}

// Open prepares a pool; it does not wait for the server. Close ends it.
func Open(url config.Secret, cfg PoolConfig, options ...Option) (*Pool, error) {
	parsed, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	parsed.MaxConns = cfg.MaxConns
	parsed.ConnConfig.ConnectTimeout = cfg.ConnectTimeout
	parsed.ConnConfig.RuntimeParams["application_name"] = "xmtp-backend"
	parsed.ConnConfig.RuntimeParams["statement_timeout"] = strconv.FormatInt(cfg.StatementTimeout.Milliseconds(), 10)
	for _, option := range options {
		option(parsed)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), parsed)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "the connection pool could not be made")
	}
	return &Pool{pool: pool, acquire: cfg.AcquireTimeout, answer: cfg.StatementTimeout + answerGrace, sessions: cfg.MaxConns}, nil
}

// Close waits for the connections in use and closes all.
func (p *Pool) Close() { p.pool.Close() }

// Reset drops the connections that were opened before: they may lead to a
// server that has gone. Those in use go when they are released.
func (p *Pool) Reset() { p.pool.Reset() }

// with runs do on one connection. The wait for a free connection is bounded.
func (p *Pool) with(ctx context.Context, doing string, do func(*pgxpool.Conn) error) error {
	ctx, end := p.meter.begin(ctx, doing)
	err := p.onConnection(ctx, doing, do)
	end(err)
	return err
}

func (p *Pool) onConnection(ctx context.Context, doing string, do func(*pgxpool.Conn) error) error {
	waiting, cancel := context.WithTimeout(ctx, p.acquire)
	conn, err := p.pool.Acquire(waiting)
	cancel()
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) { // the time of this wait or of the whole call
			return fault.Wrap(fault.Unavailable, fmt.Errorf("%w: %w", ErrBusy, err), "no database connection became free in time, within %v at most", p.acquire)
		}
		return classify(err, doing)
	}
	defer conn.Release()
	return classify(do(conn), doing)
}

// SQLSTATEs that have a meaning here; see the PostgreSQL manual, appendix A.
const (
	sqlUndefinedTable       = "42P01"
	sqlQueryCanceled        = "57014"
	sqlLockNotAvailable     = "55P03"
	sqlSerializationFailure = "40001"
	sqlDeadlock             = "40P01"
	sqlAdminShutdown        = "57P01" // also of one session, by pg_terminate_backend
	sqlCrashShutdown        = "57P02"
	sqlIdleSessionTimeout   = "57P05"
)

// ErrBusy is the cause of an Unavailable that comes from the callers' number: none of
// the pool's connections became free in time, whatever the server's state.
var ErrBusy = errors.New("all connections are in use")

// classify turns a driver error into a fault. Faults and nil pass unchanged.
func classify(err error, doing string) error {
	if err == nil {
		return nil
	}
	var classified *fault.Error
	if errors.As(err, &classified) {
		return err
	}
	var connect *pgconn.ConnectError
	// Whatever the server says, also that a database or a role does not exist yet,
	// and also that it took longer than the time for one connection.
	if errors.As(err, &connect) && !errors.Is(err, context.Canceled) {
		return fault.Wrap(fault.Unavailable, err, "the database is not reachable")
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return classifyServer(server, err, doing)
	}
	var network net.Error
	if errors.As(err, &network) || isConnectionLoss(err) {
		return fault.Wrap(fault.Unavailable, err, "the database is not reachable")
	}
	return fault.Wrap(fault.Broken, err, "internal error")
}

func classifyServer(server *pgconn.PgError, err error, doing string) error {
	switch server.Code {
	case sqlQueryCanceled:
		return fault.Wrap(fault.Late, err, "the database took longer than the time limit of a statement")
	case sqlLockNotAvailable, sqlSerializationFailure, sqlDeadlock:
		return fault.Wrap(fault.Unavailable, err, "the database is busy with a conflicting request")
	}
	switch server.Code[:2] {
	case "08", "53", "57", "58", "25": // connection, resources, operator, system, read-only or failed transaction
		return fault.Wrap(fault.Unavailable, err, "the database is not available")
	}
	return fault.Wrap(fault.Broken, fmt.Errorf("%s: %w", doing, err), "internal error")
}

func isConnectionLoss(err error) bool {
	return pgconn.SafeToRetry(err) || pgconn.Timeout(err) || errors.Is(err, net.ErrClosed) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// isSessionEnd reports whether one session was ended, by the server, an operator or
// the network. A new one may do. A connection that could not be opened is another
// thing, but for one that was ended while it was.
func isSessionEnd(err error) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		switch server.Code {
		case sqlAdminShutdown, sqlCrashShutdown, sqlIdleSessionTimeout:
			return true
		}
		return server.Code[:2] == "08"
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) {
		return false
	}
	var network net.Error
	return errors.As(err, &network) || isConnectionLoss(err)
}

func isSQLState(err error, code string) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == code
}

func isUndefinedTable(err error) bool { return isSQLState(err, sqlUndefinedTable) }
