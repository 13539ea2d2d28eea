package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/config"
)

// StoreAtOnce stores the drafts of a batch on a plain connection.
func StoreAtOnce(ctx context.Context, conn *pgx.Conn, batch Batch) (Outcome, error) {
	found, err := storeAtOnce(ctx, conn, &batch)
	if err != nil {
		return Outcome{}, err
	}
	outcome, _, err := found.Settle(&batch, everyDraft(&batch))
	return outcome, err
}

// PublisherSettings are the settings of every session that publishes.
func PublisherSettings() map[string]string { return publisherSettings }

// Caution is how many batches look first after one that wrote in vain.
const Caution = caution

// OpenBehindAPooler is a publisher whose connections were taken to lead to a primary
// when they were opened, whatever they lead to.
func OpenBehindAPooler(url config.Secret, cfg PoolConfig) (*Publisher, error) {
	p := &Publisher{era: 1}
	pool, err := Open(url, cfg, WithEachConnection(func(_ context.Context, conn *pgx.Conn) error {
		conn.PgConn().CustomData()[standingKey] = &standing{era: 1, checked: true}
		return nil
	}))
	p.pool = pool
	return p, err
}

// Sessions is how many connections the publisher has opened so far.
func (p *Publisher) Sessions() int64 { return p.pool.pool.Stat().NewConnsCount() }

// Setting is a run-time parameter of a session that publishes.
func (p *Publisher) Setting(ctx context.Context, name string) (value string, err error) {
	err = p.on(ctx, "read a setting", func(conn *pgx.Conn, _ *standing) error {
		return conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value)
	})
	return value, err
}
