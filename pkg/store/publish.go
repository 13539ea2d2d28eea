package store

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
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

// groupLockTimeout is how long a transaction that several requests share waits
// for one lock. Past it the requests run alone, so that one held topic delays
// its neighbours no longer.
const groupLockTimeout = 250 * time.Millisecond

// idleInTransactionTimeout ends the transaction of a publisher that stalls
// between two statements, and with it the locks it holds.
const idleInTransactionTimeout = 5 * time.Second

// Publisher writes envelopes. Its connections go to the primary and have each
// checked the lineage of the sequence before their first use.
type Publisher struct {
	pool *Pool
	// changed counts the times that the sequence was moved on.
	changed func(context.Context)
}

// OpenPublisher prepares the connections; it does not wait for the server.
// lineageChanged, which may be nil, is called whenever this process moved the
// sequence on to another lineage. Close ends it.
func OpenPublisher(url config.Secret, cfg PoolConfig, lineageChanged func(context.Context)) (*Publisher, error) {
	p := &Publisher{changed: lineageChanged}
	pool, err := Open(url, cfg,
		WithSetting("lock_timeout", milliseconds(groupLockTimeout)),
		WithSetting("idle_in_transaction_session_timeout", milliseconds(idleInTransactionTimeout)),
		// Every statement here reaches few rows by a key that it is given in
		// arrays. One plan of nested index scans is right for all of them, at any
		// size of the tables, and is made once per connection.
		WithSetting("plan_cache_mode", "force_generic_plan"),
		WithSetting("enable_seqscan", "off"),
		WithSetting("enable_hashjoin", "off"),
		WithSetting("enable_mergejoin", "off"))
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
	// LockTimeout bounds the wait for one lock; 0 is the short bound of a
	// transaction that requests share.
	LockTimeout time.Duration
	// StatementTimeout bounds one statement; 0 is the configured bound.
	StatementTimeout time.Duration
}

// Locked is what the transaction found once it held all locks: nothing of it
// changes until the transaction ends.
type Locked struct {
	// ServerNS is the start of the transaction (section 4 of the specification).
	ServerNS int64
	// Heads are in the order of Batch.Topics; 0 is a topic without an envelope.
	Heads []topic.SequenceID
	// Stored has, by index in Batch.Keys, the envelopes that are stored.
	Stored map[int]envelope.Meta
	// IDs are new sequence ids, one for each key, ascending.
	IDs []topic.SequenceID
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
// returned. After a nil error everything is committed on the primary (API-016).
// After any other the outcome is unknown only if the connection broke during the
// commit: the same batch may be tried again, what is stored is then found.
//
// judge runs while locks are held and must be quick.
func (p *Publisher) Commit(ctx context.Context, batch Batch, judge func(Locked) (Writes, error)) error {
	return p.pool.with(ctx, "publish", func(conn *pgxpool.Conn) error {
		err := p.commit(ctx, conn.Conn(), batch, judge)
		if err != nil && !conn.Conn().IsClosed() {
			// A connection that cannot roll back is closed when it is released.
			_, _ = conn.Exec(ctx, "ROLLBACK")
		}
		return err
	})
}

func (p *Publisher) commit(ctx context.Context, conn *pgx.Conn, batch Batch, judge func(Locked) (Writes, error)) error {
	names := topicBytes(batch.Topics)
	lineage, err := p.lineageOf(ctx, conn)
	if err != nil {
		return err
	}
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
	return write(ctx, conn, names, locked, writes)
}

// lockTopics begins the transaction, takes its locks and reads what they protect, all
// in one round trip.
func lockTopics(ctx context.Context, conn *pgx.Conn, batch Batch, names [][]byte) (Locked, error) {
	var found Locked
	keyTopics, hashes := make([][]byte, len(batch.Keys)), make([][]byte, len(batch.Keys))
	for i := range batch.Keys {
		keyTopics[i], hashes[i] = []byte(batch.Keys[i].Topic), batch.Keys[i].Hash[:]
	}
	var queue pgx.Batch
	queue.Queue("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
	if batch.LockTimeout > 0 {
		queue.Queue("SELECT set_config('lock_timeout', $1, true)", milliseconds(batch.LockTimeout))
	}
	if batch.StatementTimeout > 0 {
		queue.Queue("SELECT set_config('statement_timeout', $1, true)", milliseconds(batch.StatementTimeout))
	}
	if batch.Identity {
		queue.Queue(publishIdentityLockSQL)
	}
	queue.Queue(publishLockTopicsSQL, names)
	queue.Queue(publishHeadsSQL, names).Query(func(rows pgx.Rows) (err error) {
		found.Heads, err = pgx.CollectRows(rows, pgx.RowTo[topic.SequenceID])
		return err
	})
	queue.Queue(publishStoredSQL, keyTopics, hashes).Query(func(rows pgx.Rows) (err error) {
		found.Stored, err = collectStored(rows, batch.Keys)
		return err
	})
	queue.Queue(publishBeginSQL, len(batch.Keys)).QueryRow(func(row pgx.Row) error {
		return row.Scan(&found.ServerNS, &found.xid, &found.IDs)
	})
	if err := conn.SendBatch(ctx, &queue).Close(); err != nil {
		return found, err
	}
	if len(found.Heads) != len(batch.Topics) || len(found.IDs) != len(batch.Keys) {
		return found, fmt.Errorf("locked %d of %d topics and got %d of %d sequence ids",
			len(found.Heads), len(batch.Topics), len(found.IDs), len(batch.Keys))
	}
	return found, nil
}

func collectStored(rows pgx.Rows, keys []Key) (map[int]envelope.Meta, error) {
	var stored map[int]envelope.Meta
	var n int
	var meta envelope.Meta
	_, err := pgx.ForEachRow(rows, []any{&n, &meta.SequenceID, &meta.ServerNS, &meta.ExpiryNS, &meta.IsCommitOrProposal}, func() error {
		if stored == nil {
			stored = make(map[int]envelope.Meta)
		}
		meta.Topic, meta.MessageHash = keys[n-1].Topic, keys[n-1].Hash
		stored[n-1] = meta
		return nil
	})
	return stored, err
}

// write stores the rows and commits, in one round trip.
func write(ctx context.Context, conn *pgx.Conn, names [][]byte, locked Locked, writes Writes) error {
	var queue pgx.Batch
	queueRows(&queue, locked, writes.Rows)
	var movedNames [][]byte
	var movedTo []int64
	for i, head := range writes.Heads {
		if head > 0 {
			movedNames, movedTo = append(movedNames, names[i]), append(movedTo, int64(head))
		}
	}
	queue.Queue(publishMoveHeadsSQL, movedNames, movedTo)
	queueAssociations(&queue, publishAssociateSQL, writes.Added)
	queueAssociations(&queue, publishRevokeSQL, writes.Removed)
	queue.Queue("COMMIT")
	return conn.SendBatch(ctx, &queue).Close()
}

func queueRows(queue *pgx.Batch, locked Locked, rows []Row) {
	topics, ids, expiries := make([][]byte, len(rows)), make([]int64, len(rows)), make([]int64, len(rows))
	hashes, flags, payloads := make([][]byte, len(rows)), make([]bool, len(rows)), make([][]byte, len(rows))
	for i := range rows {
		meta := &rows[i].Meta
		topics[i], ids[i], expiries[i] = []byte(meta.Topic), int64(meta.SequenceID), meta.ExpiryNS
		hashes[i], flags[i], payloads[i] = meta.MessageHash[:], meta.IsCommitOrProposal, rows[i].Payload
	}
	queue.Queue(publishRowsSQL, locked.ServerNS, locked.xid, topics, ids, expiries, hashes, flags, payloads)
}

func queueAssociations(queue *pgx.Batch, sql string, changes []Association) {
	if len(changes) == 0 {
		return
	}
	kinds, identifiers := make([]int16, len(changes)), make([]string, len(changes))
	inboxes, ids := make([][]byte, len(changes)), make([]int64, len(changes))
	for i, c := range changes {
		kinds[i], identifiers[i], inboxes[i], ids[i] = c.Kind, c.Identifier, []byte(c.InboxID), int64(c.SequenceID)
	}
	queue.Queue(sql, kinds, identifiers, inboxes, ids)
}

func topicBytes(topics []topic.Topic) [][]byte {
	names := make([][]byte, len(topics))
	for i, name := range topics {
		names[i] = []byte(name)
	}
	return names
}

// FindStored returns, by index in keys, the envelopes that are stored now. It
// takes no lock: others may be stored right after.
func (p *Publisher) FindStored(ctx context.Context, keys []Key) (map[int]envelope.Meta, error) {
	topics, hashes := make([][]byte, len(keys)), make([][]byte, len(keys))
	for i := range keys {
		topics[i], hashes[i] = []byte(keys[i].Topic), keys[i].Hash[:]
	}
	var stored map[int]envelope.Meta
	err := p.pool.with(ctx, "look up stored envelopes", func(conn *pgxpool.Conn) error {
		rows, err := conn.Query(ctx, publishStoredSQL, topics, hashes)
		if err != nil {
			return err
		}
		stored, err = collectStored(rows, keys)
		return err
	})
	return stored, err
}

// IsRetryable says whether the same publish, tried again at once, may succeed:
// the connection was lost, a lock was held too long, a server ended.
func IsRetryable(err error) bool {
	var server *pgconn.PgError
	return fault.KindOf(err) == fault.Unavailable || errors.As(err, &server) && server.Code == sqlQueryCanceled
}
