package store_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// poolConfig is for tests on a busy machine.
var poolConfig = store.PoolConfig{MaxConns: 4, ConnectTimeout: 10 * time.Second, AcquireTimeout: 10 * time.Second, StatementTimeout: 10 * time.Second}

func secret(url string) config.Secret { return config.Secret(url) }

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, secret(url))
	return err
}

// connect opens a plain connection for what a test does behind the store's back.
func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// group is the n-th group topic of a test.
func group(n int) topic.Topic {
	identifier := make([]byte, topic.GroupIDLength)
	binary.BigEndian.PutUint64(identifier, uint64(n))
	made, err := topic.New(topic.GroupMessage, identifier)
	if err != nil {
		panic(err)
	}
	return made
}

type executor interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// insertSQL stores one envelope as a publisher does.
const insertSQL = `
WITH head AS (
    INSERT INTO topic_heads (topic, last_sequence_id) VALUES ($1, 0)
    ON CONFLICT (topic) DO UPDATE SET last_sequence_id = topic_heads.last_sequence_id RETURNING topic
), stored AS (
    INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
    SELECT topic, nextval('envelope_sequence'), 1000, NULL, $3, false, pg_current_xact_id()::text::bigint, $2 FROM head
    RETURNING topic, sequence_id
)
SELECT sequence_id FROM stored`

// insert stores a payload and returns its sequence id.
func insert(t testing.TB, conn executor, name topic.Topic, payload []byte) topic.SequenceID {
	t.Helper()
	hash := sha256.Sum256(payload)
	var id topic.SequenceID
	require.NoError(t, conn.QueryRow(t.Context(), insertSQL, []byte(name), payload, hash[:]).Scan(&id))
	var raised int64
	require.NoError(t, conn.QueryRow(t.Context(),
		`UPDATE topic_heads SET last_sequence_id = greatest(last_sequence_id, $2) WHERE topic = $1 RETURNING last_sequence_id`, []byte(name), int64(id)).Scan(&raised))
	return id
}

// openInstance returns a pinned pool.
func openInstance(t testing.TB, url string) (*store.InstancePool, store.Baseline) {
	t.Helper()
	pool, err := store.OpenInstance(secret(url), poolConfig)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	base, err := pool.Pin(t.Context())
	require.NoError(t, err)
	return pool, base
}

func TestHeadsAreAlignedWithTheirTopics(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	pool, _ := openInstance(t, db.PrimaryURL)
	first := insert(t, conn, group(1), []byte("a"))
	third := insert(t, conn, group(3), []byte("b"))
	heads, err := pool.Heads(t.Context(), []topic.Topic{group(3), group(2), group(1), group(3)})
	require.NoError(t, err)
	require.Equal(t, []topic.SequenceID{third, 0, first, third}, heads)
	heads, err = pool.Heads(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, heads)
}

// A stream may hold 100,000 topics and its first update asks for all of them.
func TestHeadsOfAHundredThousandTopics(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	_, err := conn.Exec(t.Context(), `INSERT INTO topic_heads SELECT '\x00'::bytea || int8send(n) || int8send(0), n FROM generate_series(1, 200000) n`)
	require.NoError(t, err)
	pool, _ := openInstance(t, db.PrimaryURL)
	topics := make([]topic.Topic, 100_000)
	for i := range topics {
		topics[i] = group(2*i + 1)
	}
	for range 3 {
		begun := time.Now()
		heads, err := pool.Heads(t.Context(), topics)
		for err != nil && fault.KindOf(err) == fault.Late && time.Since(begun) < time.Minute { // a busy machine needs longer than the server's limit
			heads, err = pool.Heads(t.Context(), topics)
		}
		require.NoError(t, err)
		t.Logf("%d heads in %v", len(heads), time.Since(begun))
		require.Equal(t, topic.SequenceID(1), heads[0])
		require.Equal(t, topic.SequenceID(199_999), heads[99_999])
	}
}
