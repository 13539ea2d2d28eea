package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/store/migrations"
)

// LowestSchema is the lowest schema version that this binary works with. A
// higher one is accepted, so that old and new instances run together during an
// upgrade.
const LowestSchema = 2

// Migrate applies the migrations that the database lacks and returns the
// version it then has. Concurrent callers wait for each other: goose polls
// pg_try_advisory_lock, since a session that waits inside pg_advisory_lock
// deadlocks with CREATE INDEX CONCURRENTLY.
func Migrate(ctx context.Context, url config.Secret) (int64, error) {
	parsed, err := parseURL(url)
	if err != nil {
		return 0, err
	}
	db := stdlib.OpenDB(*parsed.ConnConfig)
	defer func() { _ = db.Close() }()
	version, err := migrate(ctx, db)
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "the database schema could not be brought up to date")
	}
	return version, nil
}

func migrate(ctx context.Context, db *sql.DB) (int64, error) {
	// Five minutes: as long as another instance may need to build an index.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, uint64((5 * time.Minute).Seconds())))
	if err != nil {
		return 0, err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, err
	}
	if _, err := provider.Up(ctx); err != nil {
		return 0, err
	}
	return provider.GetDBVersion(ctx)
}

// CheckSchema fails as Unavailable while the database is below LowestSchema. It
// names both versions. A session that was ended, or a standby that cancelled the
// question, is asked for again at once.
func (p *Pool) CheckSchema(ctx context.Context) error {
	return p.repeatedly(ctx, func() error { return checkSchema(ctx, p.pool) })
}

// asker is a pool or a connection.
type asker interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func checkSchema(ctx context.Context, from asker) error {
	var version int64
	err := from.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&version)
	if err != nil && !isUndefinedTable(err) {
		return classify(err, "read the schema version")
	}
	if version < LowestSchema {
		return fault.Wrap(fault.Unavailable, errors.New("schema too old"),
			"the database has schema version %d, expected at least %d: run the publisher or its migrate command", version, LowestSchema)
	}
	return nil
}

func parseURL(url config.Secret) (*pgxpool.Config, error) {
	parsed, err := pgxpool.ParseConfig(url.Reveal())
	if err != nil {
		// The cause would repeat the URL with its password.
		return nil, fault.Errorf(fault.Unavailable, "the database URL could not be read, expected postgres://user:password@host:port/database")
	}
	return parsed, nil
}
