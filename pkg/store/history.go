package store

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

//go:embed sql/history.sql
var historySQL string

// HistoryEntry is one stored identity update.
type HistoryEntry struct {
	SequenceID topic.SequenceID
	Hash       envelope.MessageHash
	// Bytes is the length of the payload.
	Bytes int
	// Payload is nil in an outline.
	Payload []byte
}

// History returns the whole log of an identity topic from one snapshot: the last
// sequence id is its version (API-051).
func (p *Publisher) History(ctx context.Context, inbox topic.Topic) ([]HistoryEntry, error) {
	return p.history(ctx, inbox, true)
}

// HistoryOutline is History without the payloads, which may be long.
func (p *Publisher) HistoryOutline(ctx context.Context, inbox topic.Topic) ([]HistoryEntry, error) {
	return p.history(ctx, inbox, false)
}

func (p *Publisher) history(ctx context.Context, inbox topic.Topic, payloads bool) ([]HistoryEntry, error) {
	var entries []HistoryEntry
	err := p.on(ctx, "read the history of an inbox", func(conn *pgx.Conn, _ *standing) error {
		rows, err := conn.Query(ctx, historySQL, []byte(inbox), payloads)
		if err != nil {
			return err
		}
		var e HistoryEntry
		var hash []byte
		_, err = pgx.ForEachRow(rows, []any{&e.SequenceID, &hash, &e.Bytes, &e.Payload}, func() error {
			e.Hash = envelope.MessageHash(hash)
			entries = append(entries, e)
			return nil
		})
		return err
	})
	return entries, err
}
