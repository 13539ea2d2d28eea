package store

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

//go:embed sql/instance.sql
var instanceSQL string

// Instance is one run of one server. A restart changes PostmasterStart, a
// failover or a restore changes Timeline.
type Instance struct {
	SystemIdentifier int64
	Timeline         int32
	// Address is host and port of the server as it sees them, "socket" for the
	// host of a local connection.
	Address         string
	PostmasterStart time.Time
}

// SameLineage says whether both hold the same history: what was read from one
// is a prefix of what the other holds, or the other way round.
func (i Instance) SameLineage(other Instance) bool {
	return i.SystemIdentifier == other.SystemIdentifier && i.Timeline == other.Timeline
}

// InstanceChangedError is why an InstancePool refuses a connection: it is not to the
// pinned instance, or the instance went back in time. It is the cause of a
// fault of kind Unavailable; find it with errors.As. Only Pin helps.
type InstanceChangedError struct {
	Pinned, Seen Instance
	// WentBack is a standby that recovered from a crash to an earlier state.
	WentBack bool
}

// Error implements error.
func (e *InstanceChangedError) Error() string {
	if e.WentBack {
		return "the standby went back to an earlier state"
	}
	return fmt.Sprintf("another instance answers: system identifier %t, timeline %t, address %t, start time %t (true where it is the same)",
		e.Pinned.SystemIdentifier == e.Seen.SystemIdentifier, e.Pinned.Timeline == e.Seen.Timeline,
		e.Pinned.Address == e.Seen.Address, e.Pinned.PostmasterStart.Equal(e.Seen.PostmasterStart))
}

// ErrForeign is a server whose envelopes were written by another cluster: a
// logical replica has transaction ids of its own, so that its snapshots say
// nothing about commit_xid. It is the cause of a fault of kind Unavailable.
var ErrForeign = errors.New("the envelopes belong to another cluster: is this a logical replica?")

// Baseline is what a pin found, in one snapshot.
type Baseline struct {
	Instance Instance
	// Xmin is the first oldest running transaction seen on the instance: a sweep
	// window must not start above it.
	Xmin uint64
	// Epoch rises with every pin.
	Epoch uint64
}

// InstancePool is a Pool whose connections all lead to one server instance
// (docs/design.md#one-instance). Until Pin has succeeded, and after the instance
// changed, every read is Unavailable.
type InstancePool struct {
	*Pool
	connect *pgx.ConnConfig

	mu     sync.Mutex
	pinned bool
	base   Baseline
	// high is the greatest upper end of a sweep window so far. A connection that
	// shows an older state is not to the same run of the server, even if the
	// server's main process survived.
	high    uint64
	changed *InstanceChangedError
}

// instanceStatementTimeout bounds every statement of a streamer: a long one
// holds back the replay of its standby, or is cancelled by it.
const instanceStatementTimeout = 2 * time.Second

// OpenInstance prepares a pool for one server instance; it does not wait for
// the server. Statements take at most 2 s, or what cfg says if that is less.
func OpenInstance(url config.Secret, cfg PoolConfig) (*InstancePool, error) {
	cfg.StatementTimeout = min(cfg.StatementTimeout, instanceStatementTimeout)
	p := &InstancePool{}
	options := append(ForReads(), WithEachConnection(p.admit), func(c *pgxpool.Config) { p.connect = c.ConnConfig.Copy() })
	pool, err := Open(url, cfg, options...)
	if err != nil {
		return nil, err
	}
	p.Pool = pool
	return p, nil
}

// Pin binds the pool to the instance that answers now and drops the connections
// to any other. Its Xmin is read before any envelope is read there. It fails as
// Unavailable, and names both versions, while the schema is below LowestSchema.
func (p *InstancePool) Pin(ctx context.Context) (Baseline, error) {
	ctx, cancel := context.WithTimeout(ctx, p.connect.ConnectTimeout+p.answer)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, p.connect)
	if err != nil {
		return Baseline{}, classify(err, "connect to the database")
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := checkSchema(ctx, conn); err != nil {
		return Baseline{}, err
	}
	seen, xmin, err := identify(ctx, conn)
	if err != nil {
		return Baseline{}, err
	}
	p.mu.Lock()
	p.pinned, p.changed, p.high = true, nil, xmin
	p.base = Baseline{Instance: seen, Xmin: xmin, Epoch: p.base.Epoch + 1}
	pinned := p.base
	p.mu.Unlock()
	p.pool.Reset()
	return pinned, nil
}

// Verify asks the server again who it is: a standby that is promoted, or that
// follows another primary, keeps its connections and changes its timeline. Any
// difference makes all further reads Unavailable until the next Pin.
func (p *InstancePool) Verify(ctx context.Context) error {
	return p.onInstance(ctx, func() error {
		return p.with(ctx, "identify the database", func(conn *pgxpool.Conn) error {
			return p.answered(ctx, func(ctx context.Context) error {
				seen, _, err := identify(ctx, conn.Conn())
				if err != nil {
					return err
				}
				return p.compare(seen)
			})
		})
	})
}

// compare notes a difference between a living connection and the pin.
func (p *InstancePool) compare(seen Instance) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.same(seen) {
		return nil
	}
	return p.lost(&InstanceChangedError{Pinned: p.base.Instance, Seen: seen})
}

// lost ends the pin: what other connections still lead to may be the instance
// before, and one pool never reads from two.
func (p *InstancePool) lost(changed *InstanceChangedError) error {
	p.changed = changed
	return refusal(changed)
}

// same compares with the pin. On one run of a server the timeline only rises; a
// lower one comes from a standby whose WAL receiver is away.
func (p *InstancePool) same(seen Instance) bool {
	pinned := p.base.Instance
	return pinned.SystemIdentifier == seen.SystemIdentifier && pinned.Address == seen.Address &&
		pinned.PostmasterStart.Equal(seen.PostmasterStart) && seen.Timeline <= pinned.Timeline
}

// admit checks a new connection before its first use.
func (p *InstancePool) admit(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, p.connect.ConnectTimeout)
	defer cancel()
	p.mu.Lock()
	high := p.high // reads that end from here on may be newer than this connection's answer
	p.mu.Unlock()
	seen, xmin, err := identify(ctx, conn)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.pinned:
		return errNotPinned
	case !p.same(seen):
		return p.lost(&InstanceChangedError{Pinned: p.base.Instance, Seen: seen})
	case xmin < min(high, p.high):
		return p.lost(&InstanceChangedError{Pinned: p.base.Instance, Seen: seen, WentBack: true})
	}
	return nil
}

var errNotPinned = fault.Errorf(fault.Unavailable, "the connection to the database is being set up")

func refusal(changed *InstanceChangedError) error {
	return fault.Wrap(fault.Unavailable, changed, "the database is not the same instance as before")
}

// onInstance runs a read and refuses its result when the pin was lost meanwhile:
// a connection in use survives a new pin until it is given back.
func (p *InstancePool) onInstance(ctx context.Context, do func() error) error {
	p.mu.Lock()
	pinned, changed, epoch := p.pinned, p.changed, p.base.Epoch
	p.mu.Unlock()
	switch {
	case !pinned:
		return errNotPinned
	case changed != nil:
		return refusal(changed)
	}
	if err := do(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.base.Epoch != epoch {
		return refusal(&InstanceChangedError{Pinned: p.base.Instance, Seen: p.base.Instance})
	}
	return ctx.Err()
}

// reached notes the upper end of a window.
func (p *InstancePool) reached(high uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.high = max(p.high, high)
}

// identify asks a server who it is, and for its xmin.
func identify(ctx context.Context, conn *pgx.Conn) (Instance, uint64, error) {
	var seen Instance
	var startUS, xmin int64
	var foreign bool
	err := conn.QueryRow(ctx, instanceSQL).Scan(&seen.SystemIdentifier, &seen.Timeline, &seen.Address, &startUS, &xmin, &foreign)
	switch {
	case isUndefinedTable(err):
		return seen, 0, fault.Wrap(fault.Unavailable, err, "the database has no schema yet: run the publisher or its migrate command")
	case err != nil:
		return seen, 0, classify(err, "identify the database")
	case foreign:
		return seen, 0, fault.Wrap(fault.Unavailable, ErrForeign, "the database holds the envelopes of another cluster")
	}
	seen.PostmasterStart = time.UnixMicro(startUS)
	return seen, uint64(xmin), nil
}
