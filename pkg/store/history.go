package store

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

//go:embed sql/history.sql
var historySQL string

// HistoryEntry is one stored identity update.
type HistoryEntry struct {
	SequenceID topic.SequenceID
	Hash       envelope.MessageHash
	Payload    []byte
}

// History returns the whole log of an identity topic from one snapshot: the last
// sequence id is its version (API-051).
func (p *Publisher) History(ctx context.Context, inbox topic.Topic) ([]HistoryEntry, error) {
	var entries []HistoryEntry
	err := p.pool.with(ctx, "read the history of an inbox", func(conn *pgxpool.Conn) error {
		rows, err := conn.Query(ctx, historySQL, []byte(inbox))
		if err != nil {
			return err
		}
		var id topic.SequenceID
		var hash, payload []byte
		_, err = pgx.ForEachRow(rows, []any{&id, &hash, &payload}, func() error {
			entries = append(entries, HistoryEntry{SequenceID: id, Hash: envelope.MessageHash(hash), Payload: payload})
			return nil
		})
		return err
	})
	return entries, err
}
