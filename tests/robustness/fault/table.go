package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
)

// Table reads what a server holds in one snapshot: every row with its commit time,
// and the heads.
// xmin is used for the time, so that a wrong commit_xid cannot hide anything.
func Table(ctx context.Context, url string) ([]check.Row, map[topic.Topic]topic.SequenceID, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, nil, fmt.Errorf("read the final table: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	snapshot, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, nil, fmt.Errorf("read the final table: %w", err)
	}
	defer func() { _ = snapshot.Rollback(context.WithoutCancel(ctx)) }()
	var table []check.Row
	rows, err := snapshot.Query(ctx, `SELECT topic, sequence_id, server_ns, coalesce(expiry_ns, 0), message_hash, is_commit_or_proposal,
		sha256(payload), pg_xact_commit_timestamp(xmin) FROM envelopes ORDER BY sequence_id`)
	if err != nil {
		return nil, nil, fmt.Errorf("read the final table: %w", err)
	}
	var row check.Row
	var name, hash, content []byte
	var committed *time.Time
	m := &row.Meta
	_, err = pgx.ForEachRow(rows, []any{&name, &m.SequenceID, &m.ServerNS, &m.ExpiryNS, &hash, &m.IsCommitOrProposal, &content, &committed}, func() error {
		m.Topic, m.MessageHash, row.Content = topic.Topic(name), envelope.MessageHash(hash), envelope.MessageHash(content)
		row.CommittedAt = time.Time{}
		if committed != nil {
			row.CommittedAt = *committed
		}
		table = append(table, row)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the final table: %w", err)
	}
	heads := map[topic.Topic]topic.SequenceID{}
	rows, err = snapshot.Query(ctx, `SELECT topic, last_sequence_id FROM topic_heads WHERE last_sequence_id > 0`)
	if err != nil {
		return nil, nil, fmt.Errorf("read the final heads: %w", err)
	}
	var head topic.SequenceID
	_, err = pgx.ForEachRow(rows, []any{&name, &head}, func() error {
		heads[topic.Topic(name)] = head
		return nil
	})
	return table, heads, err
}
