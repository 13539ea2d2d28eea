package reader_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// named is the n-th topic of a kind.
func named(kind topic.Kind, n int) topic.Topic {
	length := topic.KeyLength
	if kind == topic.GroupMessage || kind == topic.CommitLog {
		length = topic.GroupIDLength
	}
	identifier := make([]byte, length)
	binary.BigEndian.PutUint64(identifier, uint64(n))
	made, err := topic.New(kind, identifier)
	if err != nil {
		panic(err)
	}
	return made
}

func group(n int) topic.Topic { return named(topic.GroupMessage, n) }

// message is a group message, told apart by n, with size bytes of data.
func message(n, size int) *backendv1.ClientEnvelope {
	data := append(fmt.Appendf(nil, "%d ", n), bytes.Repeat([]byte{'x'}, size)...)
	return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_GroupMessage{GroupMessage: &backendv1.GroupMessage{Data: data}}}
}

const storeSQL = `
WITH locked AS (
    INSERT INTO topic_heads (topic, last_sequence_id) VALUES ($1, 0)
    ON CONFLICT (topic) DO UPDATE SET last_sequence_id = topic_heads.last_sequence_id RETURNING topic
)
INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
SELECT topic, nextval('envelope_sequence'), 1000, 2000, $3, true, pg_current_xact_id()::text::bigint, $2 FROM locked
RETURNING sequence_id`

// put stores an envelope as a publisher does and returns its sequence id.
func put(t testing.TB, conn *pgx.Conn, name topic.Topic, client *backendv1.ClientEnvelope) uint64 {
	t.Helper()
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(client)
	require.NoError(t, err)
	hash := sha256.Sum256(payload)
	var id int64
	require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		if err := tx.QueryRow(t.Context(), storeSQL, []byte(name), payload, hash[:]).Scan(&id); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `UPDATE topic_heads SET last_sequence_id = $2 WHERE topic = $1`, []byte(name), id)
		return err
	}))
	return uint64(id)
}

// address is an Ethereum address.
const address = "0xab16a96d359ec26a11e2c2b3d8f8b8942d5bfcdb"

// fill stores n small envelopes on a group topic in one statement.
func fill(t testing.TB, conn *pgx.Conn, number, n int) {
	t.Helper()
	name := []byte(group(number))
	execute(t, conn, `
		INSERT INTO envelopes (topic, sequence_id, server_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
		SELECT $1, nextval('envelope_sequence'), 1000, sha256(int8send(n)), false, pg_current_xact_id()::text::bigint, '\x0a020a00'
		FROM generate_series(1, $2) n`, name, n)
	execute(t, conn, `
		INSERT INTO topic_heads SELECT topic, max(sequence_id) FROM envelopes WHERE topic = $1 GROUP BY topic
		ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id`, name)
}

// associate says that an update with this sequence id made an identifier a
// member of an inbox, and that a later one, unless 0, revoked it.
func associate(t testing.TB, conn *pgx.Conn, kind int, identifier string, inbox byte, at, revoked int64) {
	t.Helper()
	execute(t, conn, `
		INSERT INTO identifier_associations VALUES ($1, $2, $3, $4, nullif($5::bigint, 0))
		ON CONFLICT (identifier_kind, identifier, inbox_id) DO UPDATE
		SET association_sequence_id = excluded.association_sequence_id, revocation_sequence_id = excluded.revocation_sequence_id`,
		kind, identifier, bytes.Repeat([]byte{inbox}, 32), at, revoked)
}

// inboxID is the wire form of an inbox of associate.
func inboxID(inbox byte) string { return strings.Repeat(fmt.Sprintf("%02x", inbox), 32) }

func query(name topic.Topic, cursor uint64) *backendv1.TopicQuery {
	return &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: []byte(name)}, Cursor: &backendv1.Cursor{SequenceId: cursor}}
}

func ids(envelopes []*backendv1.ServerEnvelope) []uint64 {
	found := []uint64{}
	for _, e := range envelopes {
		found = append(found, e.GetMeta().GetCursor().GetSequenceId())
	}
	return found
}

// execute runs a statement behind the role's back.
func execute(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	_, err := conn.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}
