package store

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

//go:embed sql/publish_identity_lock.sql
var publishIdentityLockSQL string

//go:embed sql/publish_lock_topics.sql
var publishLockTopicsSQL string

//go:embed sql/publish_heads.sql
var publishHeadsSQL string

//go:embed sql/publish_stored.sql
var publishStoredSQL string

//go:embed sql/publish_begin.sql
var publishBeginSQL string

//go:embed sql/publish_rows.sql
var publishRowsSQL string

//go:embed sql/publish_move_heads.sql
var publishMoveHeadsSQL string

//go:embed sql/publish_associate.sql
var publishAssociateSQL string

//go:embed sql/publish_revoke.sql
var publishRevokeSQL string

// The statements of a publish. They are prepared on each connection once.
var (
	beginStatement        = statement{"publish_start", "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"}
	commitStatement       = statement{"publish_commit", "COMMIT"}
	settingStatement      = statement{"publish_setting", "SELECT set_config($1::text, $2::text, true)"}
	identityLockStatement = statement{"publish_identity_lock", publishIdentityLockSQL}
	lockTopicsStatement   = statement{"publish_lock_topics", publishLockTopicsSQL}
	lockedHeads           = statement{"publish_heads", publishHeadsSQL}
	storedStatement       = statement{"publish_stored", publishStoredSQL}
	idsStatement          = statement{"publish_begin", publishBeginSQL}
	rowsStatement         = statement{"publish_rows", publishRowsSQL}
	moveHeadsStatement    = statement{"publish_move_heads", publishMoveHeadsSQL}
	associateStatement    = statement{"publish_associate", publishAssociateSQL}
	revokeStatement       = statement{"publish_revoke", publishRevokeSQL}
)

// groupLockTimeout is how long a transaction waits for one lock the first time.
// Past it the requests run again beside the others, so that one held topic delays
// its neighbours no longer.
const groupLockTimeout = 250 * time.Millisecond

// idleInTransactionTimeout ends the transaction of a publisher that stalls
// between two statements, and with it the locks it holds.
const idleInTransactionTimeout = 5 * time.Second

// publisherSettings steer the planner. Every statement of a publish reaches few
// rows by a key that it is given in arrays: one plan of nested index scans is
// right for all of them, at any size of the tables, and is made once per
// connection. A scan that cannot be avoided, such as that of lineage, looks so dear
// then that it would be compiled, for a fifth of a second on each new connection.
var publisherSettings = map[string]string{
	"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off",
}

// Publisher writes envelopes. Its connections go to the primary and have each
// checked the lineage of the sequence before their first use.
type Publisher struct {
	pool *Pool
	// changed hears of each other lineage that is found.
	changed  func(context.Context)
	optimism optimism
}

// OpenPublisher prepares the connections; it does not wait for the server.
// lineageChanged, which may be nil, is called whenever this process finds the
// database on another lineage than before; a restart of the server, on which the
// sequence is moved on as well, is none. Close ends it.
func OpenPublisher(url config.Secret, cfg PoolConfig, lineageChanged func(context.Context)) (*Publisher, error) {
	p := &Publisher{changed: lineageChanged}
	options := []Option{
		WithSetting("lock_timeout", milliseconds(groupLockTimeout)),
		WithSetting("idle_in_transaction_session_timeout", milliseconds(idleInTransactionTimeout)),
	}
	for name, value := range publisherSettings {
		options = append(options, WithSetting(name, value))
	}
	pool, err := Open(url, cfg, options...)
	if err != nil {
		return nil, err
	}
	p.pool = pool
	return p, nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// Pool is the publisher's pool, for checks of schema and health.
func (p *Publisher) Pool() *Pool { return p.pool }

// Close waits for the connections in use and closes all.
func (p *Publisher) Close() { p.pool.Close() }

// Key is what makes an envelope the same one (API-033).
type Key struct {
	Topic topic.Topic
	Hash  envelope.MessageHash
}

// Batch is what one publish transaction locks and looks at.
type Batch struct {
	// Topics are sorted and distinct: the rows to lock.
	Topics []topic.Topic
	// Keys are the distinct envelopes that may be stored, all on Topics.
	Keys []Key
	// Identity says that identity updates are among them.
	Identity bool
	// Drafts, if there are any, are what to store for each key unless it is stored:
	// nothing else that the transaction may find matters.
	Drafts []Draft
	// LockTimeout bounds the wait for one lock; 0 is the short bound of a first
	// attempt.
	LockTimeout time.Duration
	// StatementTimeout bounds one statement; 0 is the configured bound.
	StatementTimeout time.Duration
}

// Locked is what the transaction found once it held all locks: nothing of it
// changes until the transaction ends.
type Locked struct {
	// ServerNS is the start of the transaction (section 4 of the specification).
	ServerNS int64
	// Heads are in the order of Batch.Topics; 0 is a topic without an envelope. They
	// are those from before the transaction, also once it is committed.
	Heads []topic.SequenceID
	// Stored has, by index in Batch.Keys, the envelopes that are stored.
	Stored map[int]envelope.Meta
	// IDs are new sequence ids, one for each key, ascending.
	IDs []topic.SequenceID
	// Committed says that all drafts were new and are stored with IDs.
	Committed bool
	// Lineage is what the ids belong to.
	Lineage Lineage

	xid int64
}

// Row is an envelope to store.
type Row struct {
	Meta    envelope.Meta
	Payload []byte
}

// Association is a change in the members of an inbox.
type Association struct {
	Kind       int16
	Identifier string
	InboxID    string // the 32 bytes
	SequenceID topic.SequenceID
}

// Writes is what a transaction stores. Without rows it is rolled back.
type Writes struct {
	Rows []Row
	// Heads are the new heads, by index in Batch.Topics; 0 leaves one as it is.
	Heads   []topic.SequenceID
	Added   []Association
	Removed []Association
}

// Commit runs one publish transaction. Once all locks are held, judge decides
// in memory what is stored; an error of judge rolls the transaction back and is
// returned. A batch with drafts leaves nothing to decide: judge is told what was
// committed, and only when that could not be done at once is it asked. After a nil error everything is committed on the primary (API-016).
// After any other the outcome is unknown only if the connection broke during the
// commit: the same batch may be tried again, what is stored is then found.
//
// judge runs while locks are held and must be quick.
func (p *Publisher) Commit(ctx context.Context, batch Batch, judge func(Locked) (Writes, error)) error {
	return p.pool.with(ctx, "publish", func(conn *pgxpool.Conn) error {
		err := p.commit(ctx, conn.Conn(), batch, judge)
		if err != nil && conn.Conn().PgConn().TxStatus() != noTransaction && !conn.Conn().IsClosed() {
			// A connection that cannot roll back is closed when it is released.
			_, _ = conn.Exec(ctx, "ROLLBACK")
		}
		return err
	})
}

func (p *Publisher) commit(ctx context.Context, conn *pgx.Conn, batch Batch, judge func(Locked) (Writes, error)) error {
	lineage, err := p.lineageOf(ctx, conn)
	if err != nil {
		return err
	}
	if batch.Drafts != nil && p.optimism.isCalledFor() {
		found, err := storeAtOnce(ctx, conn, batch)
		if err == nil {
			found.Lineage = lineage
			_, err = judge(found)
			return err
		}
		if !needsLocks(err, batch) {
			return err
		}
		p.optimism.disappoint()
	}
	names := topicArray(len(batch.Topics), func(i int) topic.Topic { return batch.Topics[i] })
	locked, err := lockTopics(ctx, conn, batch, names)
	if err != nil {
		return err
	}
	locked.Lineage = lineage
	writes, err := judge(locked)
	if err != nil {
		return err
	}
	if len(writes.Rows) == 0 {
		_, err := conn.Exec(ctx, "ROLLBACK")
		return err
	}
	return write(ctx, conn, batch, locked, writes)
}

// noTransaction is the status of a connection outside of one (PostgreSQL manual,
// ReadyForQuery).
const noTransaction = 'I'

// needsLocks says that the drafts of a batch could not be stored at once and can
// be in a transaction that takes its locks first, or that has more time for them.
func needsLocks(err error, batch Batch) bool {
	return isSQLState(err, sqlSerializationFailure) ||
		batch.LockTimeout > 0 && isSQLState(err, sqlLockNotAvailable) ||
		batch.StatementTimeout > 0 && isSQLState(err, sqlQueryCanceled)
}

// lockTopics begins the transaction, takes its locks and reads what they
// protect, all in one round trip.
func lockTopics(ctx context.Context, conn *pgx.Conn, batch Batch, names []byte) (Locked, error) {
	found := Locked{Heads: make([]topic.SequenceID, 0, len(batch.Topics))}
	calls := make([]call, 0, 8)
	calls = append(calls, call{statement: beginStatement})
	if batch.LockTimeout > 0 {
		calls = append(calls, setting("lock_timeout", batch.LockTimeout))
	}
	if batch.StatementTimeout > 0 {
		calls = append(calls, setting("statement_timeout", batch.StatementTimeout))
	}
	if batch.Identity {
		calls = append(calls, call{statement: identityLockStatement})
	}
	calls = append(calls,
		call{statement: lockTopicsStatement, params: [][]byte{names}},
		call{statement: lockedHeads, params: [][]byte{names}, row: func(values [][]byte) error {
			c := columns{values: values}
			found.Heads = append(found.Heads, topic.SequenceID(c.int64()))
			return c.err
		}},
		storedCall(batch.Keys, &found.Stored),
		call{statement: idsStatement, params: [][]byte{integer(int32(len(batch.Keys)))}, row: found.readBegin},
	)
	if err := exchange(ctx, conn, calls); err != nil {
		return found, err
	}
	if len(found.Heads) != len(batch.Topics) || len(found.IDs) != len(batch.Keys) {
		return found, fmt.Errorf("locked %d of %d topics and got %d of %d sequence ids",
			len(found.Heads), len(batch.Topics), len(found.IDs), len(batch.Keys))
	}
	return found, nil
}

func setting(name string, limit time.Duration) call {
	return call{statement: settingStatement, params: [][]byte{[]byte(name), []byte(milliseconds(limit))}}
}

func (l *Locked) readBegin(values [][]byte) error {
	c := columns{values: values}
	l.ServerNS, l.xid = c.int64(), c.int64()
	l.IDs = c.sequenceIDs()
	return c.err
}

// storedCall collects which of the keys are stored.
func storedCall(keys []Key, into *map[int]envelope.Meta) call {
	return call{
		statement: storedStatement,
		params: [][]byte{
			topicArray(len(keys), func(i int) topic.Topic { return keys[i].Topic }),
			byteaArray(len(keys), func(i int) []byte { return keys[i].Hash[:] }),
		},
		row: func(values [][]byte) error {
			c := columns{values: values}
			at := int(c.int64()) - 1 // WITH ORDINALITY counts from 1
			meta := envelope.Meta{
				SequenceID: topic.SequenceID(c.int64()), ServerNS: c.int64(), ExpiryNS: c.int64(), IsCommitOrProposal: c.bool(),
			}
			if c.err != nil {
				return c.err
			}
			meta.Topic, meta.MessageHash = keys[at].Topic, keys[at].Hash
			if *into == nil {
				*into = make(map[int]envelope.Meta)
			}
			(*into)[at] = meta
			return nil
		},
	}
}

// write stores the rows and commits, in one round trip.
func write(ctx context.Context, conn *pgx.Conn, batch Batch, locked Locked, writes Writes) error {
	moved := make([]int, 0, len(writes.Heads))
	for i, head := range writes.Heads {
		if head > 0 {
			moved = append(moved, i)
		}
	}
	calls := make([]call, 0, 5)
	calls = append(calls,
		rowsCall(locked, writes.Rows),
		call{statement: moveHeadsStatement, params: [][]byte{
			topicArray(len(moved), func(i int) topic.Topic { return batch.Topics[moved[i]] }),
			bigintArray(len(moved), func(i int) int64 { return int64(writes.Heads[moved[i]]) }),
		}})
	if len(writes.Added) > 0 {
		calls = append(calls, associationsCall(associateStatement, writes.Added))
	}
	if len(writes.Removed) > 0 {
		calls = append(calls, associationsCall(revokeStatement, writes.Removed))
	}
	calls = append(calls, call{statement: commitStatement})
	return exchange(ctx, conn, calls)
}

func rowsCall(locked Locked, rows []Row) call {
	n := len(rows)
	return call{statement: rowsStatement, params: [][]byte{
		bigint(locked.ServerNS),
		bigint(locked.xid),
		topicArray(n, func(i int) topic.Topic { return rows[i].Meta.Topic }),
		bigintArray(n, func(i int) int64 { return int64(rows[i].Meta.SequenceID) }),
		bigintArray(n, func(i int) int64 { return rows[i].Meta.ExpiryNS }),
		byteaArray(n, func(i int) []byte { return rows[i].Meta.MessageHash[:] }),
		booleanArray(n, func(i int) bool { return rows[i].Meta.IsCommitOrProposal }),
		byteaArray(n, func(i int) []byte { return rows[i].Payload }),
	}}
}

func associationsCall(s statement, changes []Association) call {
	n := len(changes)
	return call{statement: s, params: [][]byte{
		smallintArray(n, func(i int) int16 { return changes[i].Kind }),
		textArray(n, func(i int) string { return changes[i].Identifier }),
		byteaArray(n, func(i int) string { return changes[i].InboxID }),
		bigintArray(n, func(i int) int64 { return int64(changes[i].SequenceID) }),
	}}
}

// FindStored returns, by index in keys, the envelopes that are stored now. It
// takes no lock: others may be stored right after.
func (p *Publisher) FindStored(ctx context.Context, keys []Key) (map[int]envelope.Meta, error) {
	var stored map[int]envelope.Meta
	err := p.pool.with(ctx, "look up stored envelopes", func(conn *pgxpool.Conn) error {
		return exchange(ctx, conn.Conn(), []call{storedCall(keys, &stored)})
	})
	return stored, err
}

// IsLockTimeout says that a transaction waited too long for a lock that another
// held.
func IsLockTimeout(err error) bool { return isSQLState(err, sqlLockNotAvailable) }
