package store

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
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

	mu sync.Mutex
	// server is what the newest connection leads to, and era counts such servers.
	server incarnation
	era    Era
	// durability is the server's synchronous_commit when it was last looked at.
	durability string
}

// OpenPublisher prepares the connections; it does not wait for the server.
// lineageChanged, which may be nil, is called whenever this process finds the
// database on another lineage than before; a restart of the server, on which the
// sequence is moved on as well, is none. Close ends it.
func OpenPublisher(url config.Secret, cfg PoolConfig, lineageChanged func(context.Context)) (*Publisher, error) {
	return openPublisher(url, cfg, lineageChanged, PrimaryOnly)
}

func openPublisher(url config.Secret, cfg PoolConfig, lineageChanged func(context.Context), options ...Option) (*Publisher, error) {
	p := &Publisher{changed: lineageChanged}
	options = append(options,
		WithEachConnection(p.admit),
		WithSetting("lock_timeout", milliseconds(groupLockTimeout)),
		WithSetting("idle_in_transaction_session_timeout", milliseconds(idleInTransactionTimeout)),
	)
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

// Draft is an envelope that a publish stores unless it is stored already.
type Draft struct {
	// Topic is its index in Batch.Topics.
	Topic              int
	Hash               envelope.MessageHash
	Payload            []byte
	IsCommitOrProposal bool
	// Retention is from the start of the transaction to the expiry; 0 is for ever.
	Retention time.Duration
}

// Batch is what one publish transaction locks, looks at and may store.
type Batch struct {
	// Topics are sorted and distinct: the rows to lock.
	Topics []topic.Topic
	// Drafts are distinct envelopes. They get ids in this order.
	Drafts []Draft
	// Certain says that nothing which the transaction may find speaks against a
	// draft, so that all of them may be stored without a decision.
	Certain bool
	// Identity says that identity updates are among them.
	Identity bool
	// LockTimeout bounds the wait for one lock; 0 is the short bound of a first
	// attempt.
	LockTimeout time.Duration
	// StatementTimeout bounds one statement; 0 is the configured bound.
	StatementTimeout time.Duration
}

func (b *Batch) topicOf(draft int) topic.Topic { return b.Topics[b.Drafts[draft].Topic] }

// Locked is what the transaction found once it held all locks: nothing of it
// changes until the transaction ends.
type Locked struct {
	// Heads are in the order of Batch.Topics; 0 is a topic without an envelope.
	Heads []topic.SequenceID
	// Stored has, by index in Batch.Drafts, the envelopes that are stored.
	Stored map[int]envelope.Meta
	// ServerNS is the start of the transaction, in nanoseconds since the Unix epoch.
	ServerNS int64
	// IDs are new sequence ids, one for each draft, ascending: the nth draft that is
	// stored gets the nth.
	IDs []topic.SequenceID
	// Lineage is what the ids belong to, Era that of the server.
	Lineage Lineage
	Era     Era

	xid int64
}

// MetaOf is the metadata that a draft gets if it is stored as the nth, from 0.
func (l *Locked) MetaOf(batch *Batch, draft, nth int) (envelope.Meta, error) {
	d := &batch.Drafts[draft]
	meta := envelope.Meta{
		Topic: batch.topicOf(draft), SequenceID: l.IDs[nth], ServerNS: l.ServerNS, MessageHash: d.Hash, IsCommitOrProposal: d.IsCommitOrProposal,
	}
	if d.Retention > 0 {
		var ok bool
		if meta.ExpiryNS, ok = limit.Expiry(l.ServerNS, d.Retention); !ok {
			return meta, fault.Errorf(fault.Broken, "the retention period does not fit an expiry time")
		}
	}
	return meta, nil
}

// Verdict is what a transaction stores. If that is nothing, it is rolled back.
type Verdict struct {
	// Store has the indexes of drafts that are not stored yet, in ascending order of the
	// ids that they get.
	Store []int
	// Added and Removed are the changes in who can be looked up that come with them.
	Added, Removed []Change
}

// Change is a change in the members of an inbox, by an update among the drafts.
type Change struct {
	Draft int
	Association
}

// Association is an identifier and the inbox that it belongs to or did.
type Association struct {
	Kind       int16
	Identifier string
	InboxID    string // the 32 bytes
}

// Outcome is what became of a batch, in the order of its drafts.
type Outcome struct {
	Drafts  []Result
	Lineage Lineage
}

// Result is what became of a draft.
type Result struct {
	// Meta is that of the stored envelope. The zero value was not stored.
	Meta envelope.Meta
	// New says that this transaction stored it. Previous is then the head of the
	// topic just before.
	New      bool
	Previous topic.SequenceID
}

// Commit runs one publish transaction; its contract is in package publisher. decide
// runs while locks are held and must be quick.
//
// After a nil error everything is committed on the primary (API-016). After any other
// the outcome is unknown only if the connection broke during the commit: the same batch
// may be tried again, what is stored is then found.
func (p *Publisher) Commit(ctx context.Context, batch Batch, decide func(Locked) (Verdict, error)) (Outcome, error) {
	var outcome Outcome
	err := p.on(ctx, "publish", func(conn *pgx.Conn, here *standing) (err error) {
		outcome, err = p.commit(ctx, conn, here, &batch, decide)
		if err != nil && conn.PgConn().TxStatus() != noTransaction && !conn.IsClosed() {
			// A connection that cannot roll back is closed when it is released.
			_, _ = conn.Exec(ctx, "ROLLBACK")
		}
		return err
	})
	return outcome, err
}

func (p *Publisher) commit(ctx context.Context, conn *pgx.Conn, here *standing, batch *Batch, decide func(Locked) (Verdict, error)) (Outcome, error) {
	if err := p.checkLineage(ctx, conn, here); err != nil {
		return Outcome{}, err
	}
	if batch.Certain && p.optimism.isCalledFor() {
		found, err := storeAtOnce(ctx, conn, batch)
		if err == nil {
			found.Lineage = here.server.Lineage
			outcome, _, err := found.Settle(batch, everyDraft(batch))
			return outcome, err
		}
		if !needsLocks(err, batch) {
			return Outcome{}, err
		}
		p.optimism.disappoint()
	}
	locked, err := lockTopics(ctx, conn, batch)
	if err != nil {
		return Outcome{}, err
	}
	locked.Lineage, locked.Era = here.server.Lineage, here.era
	verdict, err := decide(locked)
	if err != nil {
		return Outcome{}, err
	}
	outcome, heads, err := locked.Settle(batch, verdict.Store)
	if err != nil {
		return Outcome{}, err
	}
	if len(verdict.Store) == 0 {
		_, err := conn.Exec(ctx, "ROLLBACK")
		return outcome, err
	}
	return outcome, write(ctx, conn, batch, locked, verdict, outcome, heads)
}

// noTransaction is the status of a connection outside of one (PostgreSQL manual,
// ReadyForQuery).
const noTransaction = 'I'

// needsLocks says that the drafts of a batch could not be stored at once and can
// be in a transaction that takes its locks first, or that has more time for them.
func needsLocks(err error, batch *Batch) bool {
	return isSQLState(err, sqlSerializationFailure) ||
		batch.LockTimeout > 0 && isSQLState(err, sqlLockNotAvailable) ||
		batch.StatementTimeout > 0 && isSQLState(err, sqlQueryCanceled)
}

func everyDraft(batch *Batch) []int {
	all := make([]int, len(batch.Drafts))
	for i := range all {
		all[i] = i
	}
	return all
}

// Settle gives the drafts to store their ids and finds the head before each: what
// Commit makes of a verdict, also of one that nobody had to give. It returns the heads
// of the topics afterwards. It fails as Broken where an id is not above its head, or
// an expiry beyond all time.
func (l *Locked) Settle(batch *Batch, store []int) (Outcome, []topic.SequenceID, error) {
	outcome := Outcome{Drafts: make([]Result, len(batch.Drafts)), Lineage: l.Lineage}
	for draft, meta := range l.Stored {
		outcome.Drafts[draft].Meta = meta
	}
	heads := make([]topic.SequenceID, len(l.Heads))
	copy(heads, l.Heads)
	for nth, draft := range store {
		meta, err := l.MetaOf(batch, draft, nth)
		if err != nil {
			return Outcome{}, nil, err
		}
		head := &heads[batch.Drafts[draft].Topic]
		if meta.SequenceID <= *head {
			return Outcome{}, nil, fault.Errorf(fault.Broken, "the sequence gave an id that is not above the head of its topic")
		}
		outcome.Drafts[draft] = Result{Meta: meta, New: true, Previous: *head}
		*head = meta.SequenceID
	}
	return outcome, heads, nil
}

// FindStored returns, by index in keys, the envelopes that are stored now. It
// takes no lock: others may be stored right after.
func (p *Publisher) FindStored(ctx context.Context, keys []Key) (map[int]envelope.Meta, error) {
	var stored map[int]envelope.Meta
	err := p.on(ctx, "look up stored envelopes", func(conn *pgx.Conn, _ *standing) error {
		return exchange(ctx, conn, []call{storedCall(len(keys),
			func(i int) topic.Topic { return keys[i].Topic }, func(i int) *envelope.MessageHash { return &keys[i].Hash }, &stored)})
	})
	return stored, err
}

// LostItsLocks says that a transaction waited too long for a lock that another
// held, or was ended to let another have its locks.
func LostItsLocks(err error) bool {
	return isSQLState(err, sqlLockNotAvailable) || isSQLState(err, sqlDeadlock)
}

// StatementOfOne is the statement that stores a publish of one new envelope, and
// the settings of the sessions that run it, for benchmarks that compare with it.
// Its parameters are topic, message hash, retention in nanoseconds, whether it is a
// commit or proposal, and payload.
func StatementOfOne() (sql string, settings map[string]string) {
	return publishOneSQL, maps.Clone(publisherSettings)
}
