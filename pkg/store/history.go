package store

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

var (
	//go:embed sql/history_outline.sql
	historyOutlineSQL string
	//go:embed sql/history.sql
	historySQL string
)

// HistoryEntry is one stored identity update.
type HistoryEntry struct {
	SequenceID topic.SequenceID
	Hash       envelope.MessageHash
	// Bytes is the length of the payload.
	Bytes int
	// Payload is nil in an outline.
	Payload []byte
}

// HistoryOutline returns the whole log of an identity topic from one snapshot, without
// the payloads, which may be long: the last sequence id is its version (API-051).
func (p *Publisher) HistoryOutline(ctx context.Context, inbox topic.Topic) ([]HistoryEntry, error) {
	return p.history(ctx, historyOutlineSQL, []byte(inbox))
}

// History returns the part of a log above one sequence id and up to another, with its
// payloads. Updates come into a log in the order of their ids and stay as they are, so
// that it is what an outline of that version has, unless the database is another by now.
func (p *Publisher) History(ctx context.Context, inbox topic.Topic, above, through topic.SequenceID) ([]HistoryEntry, error) {
	return p.history(ctx, historySQL, []byte(inbox), above, through)
}

func (p *Publisher) history(ctx context.Context, query string, arguments ...any) ([]HistoryEntry, error) {
	var entries []HistoryEntry
	err := p.pool.with(ctx, "read the history of an inbox", func(conn *pgxpool.Conn) error {
		rows, err := conn.Query(ctx, query, arguments...)
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
