// Package check looks through what a backend has stored. It only reads.
package check

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/payload"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Refused is an inbox whose log clients refuse as a whole.
type Refused struct {
	// InboxID is 64 hex digits.
	InboxID string `json:"inbox_id"`
	// Place is that of the first update that they refuse, in a log that begins with 1.
	Place      int              `json:"place"`
	SequenceID topic.SequenceID `json:"sequence_id"`
	// Problem is why, without anything of the update.
	Problem string `json:"problem"`
}

// Progress is how far a check is.
type Progress struct{ Inboxes, Of, Refused int }

// inboxesAtOnce is how many ids of inboxes are read together.
const inboxesAtOnce = 1000

// Identity goes through the identity updates of all inboxes in a database, in the order
// of their ids, and tells each whose log a client of today would refuse. It reads one
// update at a time, in sessions that cannot write; a standby will do. progress is told
// after each inbox.
func Identity(ctx context.Context, url string, refused func(Refused) error, progress func(Progress)) (Progress, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return Progress{}, errors.New("the URL of the database cannot be read, expected postgres://user:password@host:port/database")
	}
	config.RuntimeParams["default_transaction_read_only"] = "on"
	connection, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return Progress{}, fmt.Errorf("connect to the database: %s", without(err, config.Password))
	}
	defer func() { _ = connection.Close(context.WithoutCancel(ctx)) }()
	c := checker{connection: connection, refused: refused, progress: progress}
	err = c.run(ctx)
	return c.done, err
}

func without(err error, password string) string {
	if password == "" {
		return err.Error()
	}
	return strings.ReplaceAll(err.Error(), password, "[password]")
}

type checker struct {
	connection *pgx.Conn
	refused    func(Refused) error
	progress   func(Progress)
	done       Progress
}

// Identity topics are those of their kind with an envelope.
const (
	countInboxes = `SELECT count(*) FROM topic_heads WHERE topic > '\x02' AND topic < '\x03' AND last_sequence_id > 0`
	nextInboxes  = `SELECT topic FROM topic_heads WHERE topic > $1 AND topic < '\x03' AND last_sequence_id > 0 ORDER BY topic LIMIT $2`
	readLog      = `SELECT sequence_id, payload FROM envelopes WHERE topic = $1 ORDER BY sequence_id`
)

func (c *checker) run(ctx context.Context) error {
	if err := c.connection.QueryRow(ctx, countInboxes).Scan(&c.done.Of); err != nil {
		return fmt.Errorf("count the inboxes: %w", err)
	}
	after := []byte{byte(topic.IdentityUpdate)}
	for {
		rows, err := c.connection.Query(ctx, nextInboxes, after, inboxesAtOnce)
		if err != nil {
			return fmt.Errorf("list inboxes: %w", err)
		}
		inboxes, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return fmt.Errorf("list inboxes: %w", err)
		}
		for _, inbox := range inboxes {
			if err := c.inbox(ctx, inbox); err != nil {
				return fmt.Errorf("read the log of an inbox: %w", err)
			}
		}
		if len(inboxes) < inboxesAtOnce {
			return nil
		}
		after = inboxes[len(inboxes)-1]
	}
}

func (c *checker) inbox(ctx context.Context, name []byte) error {
	rows, err := c.connection.Query(ctx, readLog, name)
	if err != nil {
		return err
	}
	defer rows.Close()
	var auditor association.Auditor
	for place := 1; rows.Next(); place++ {
		found := Refused{InboxID: hex.EncodeToString(name[1:]), Place: place}
		var encoded []byte
		if err := rows.Scan(&found.SequenceID, &encoded); err != nil {
			return err
		}
		update, err := payload.DecodeIdentityUpdate(encoded)
		if err != nil {
			found.Problem = "the envelope does not hold an identity update"
		} else if err = auditor.Next(ctx, update); err != nil {
			found.Problem = fault.Of(err).Text()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			continue
		}
		c.done.Refused++
		if err := c.refused(found); err != nil {
			return err
		}
		break // the rest of the log cannot be told
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return err
	}
	c.done.Inboxes++
	c.progress(c.done)
	return nil
}
