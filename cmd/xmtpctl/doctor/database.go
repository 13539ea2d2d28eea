package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// The bounds past which a database is worth a word.
const (
	oldTransaction = time.Minute
	farBehindBytes = 64 << 20
)

// server is what one database says of itself.
type server struct {
	version, identifier int64
	// started tells a server from others of its cluster, whichever way leads to it.
	started           time.Time
	standby, feedback bool
	feedbackEvery     int64 // seconds
	synchronous       string
	position          int64 // bytes of the WAL, written or replayed
	streaming         bool
}

const askServer = `SELECT current_setting('server_version_num')::bigint, system_identifier, pg_postmaster_start_time(), pg_is_in_recovery(),
  current_setting('hot_standby_feedback')::boolean, (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_receiver_status_interval'),
  current_setting('synchronous_commit'),
  pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, '0/0')::bigint,
  EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')
FROM pg_control_system()`

func (d *doctor) databases(ctx context.Context) {
	var primary *server
	if url := d.environment["XMTP_PRIMARY_URL"]; url != "" {
		d.ask(ctx, "primary", "XMTP_PRIMARY_URL", url, func(ctx context.Context, connection *pgx.Conn, s server) error {
			primary = &s
			return d.primary(ctx, connection, s)
		})
	}
	urls := d.environment["XMTP_REPLICA_URL"]
	if urls == "" {
		d.good("replica", "there is none: the primary serves all reads")
		return
	}
	list := strings.Split(urls, ",")
	for i, url := range list {
		name := "replica"
		if len(list) > 1 {
			name = fmt.Sprintf("replica %d", i+1)
		}
		d.ask(ctx, name, "XMTP_REPLICA_URL", strings.TrimSpace(url), func(_ context.Context, _ *pgx.Conn, s server) error {
			d.replica(name, s, primary)
			return nil
		})
	}
}

// ask connects and reads what every database is asked.
func (d *doctor) ask(ctx context.Context, area, variable, url string, more func(context.Context, *pgx.Conn, server) error) {
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	connection, err := pgx.Connect(ctx, url)
	if err != nil {
		d.bad(area, "is it up, and do host, port, user, password, database and sslmode of "+variable+" hold from here?", "cannot connect: %s", d.without(err))
		return
	}
	defer func() { _ = connection.Close(context.WithoutCancel(ctx)) }()
	var s server
	err = connection.QueryRow(ctx, askServer).Scan(&s.version, &s.identifier, &s.started, &s.standby, &s.feedback, &s.feedbackEvery, &s.synchronous, &s.position, &s.streaming)
	if err == nil {
		if major := s.version / 10000; major < pglocal.MinVersion {
			d.bad(area, fmt.Sprintf("upgrade it to version %d or newer", pglocal.MinVersion), "PostgreSQL %d is too old", major)
		} else {
			d.good(area, "PostgreSQL %d answers", major)
		}
		err = more(ctx, connection, s)
	}
	if err != nil {
		d.bad(area, "does the user of "+variable+" own the database?", "a question failed: %s", d.without(err))
	}
}

func (d *doctor) primary(ctx context.Context, connection *pgx.Conn, s server) error {
	const area = "primary"
	if s.standby {
		d.bad(area, "point XMTP_PRIMARY_URL at the primary, or promote this server", "it is a standby and takes no writes")
	}
	if s.synchronous == "off" {
		d.bad(area, "ALTER SYSTEM SET synchronous_commit = on, and reload", "synchronous_commit is off: a crash loses publishes that were acknowledged")
	}
	if err := d.schema(ctx, connection); err != nil {
		return err
	}
	var open, prepared float64
	if err := connection.QueryRow(ctx, `SELECT
  coalesce((SELECT max(extract(epoch FROM now() - xact_start)) FROM pg_stat_activity WHERE backend_xid IS NOT NULL), 0)::float8,
  coalesce((SELECT max(extract(epoch FROM now() - prepared)) FROM pg_prepared_xacts), 0)::float8`).Scan(&open, &prepared); err != nil {
		return err
	}
	if oldest := time.Duration(max(open, prepared) * float64(time.Second)); oldest > oldTransaction {
		d.warn(area, "docs/runbooks/SweepWindowStuck.md finds and ends it", "a transaction has been open for %v: the sweep waits for it", oldest.Round(time.Second))
	}
	var used, allowed int
	if err := connection.QueryRow(ctx, `SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), current_setting('max_connections')::int`).Scan(&used, &allowed); err != nil {
		return err
	}
	if used*10 > allowed*8 {
		d.warn(area, "raise max_connections, or lower XMTP_DB_MAX_CONNS or the number of pods", "%d of %d connections are in use", used, allowed)
	}
	return nil
}

func (d *doctor) schema(ctx context.Context, connection *pgx.Conn) error {
	const area = "primary"
	var exists bool
	if err := connection.QueryRow(ctx, `SELECT to_regclass('goose_db_version') IS NOT NULL`).Scan(&exists); err != nil {
		return err
	}
	version := int64(0)
	if exists {
		if err := connection.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&version); err != nil {
			return err
		}
	}
	if version < store.LowestSchema {
		d.bad(area, "run: publisher migrate", "the schema has version %d, expected at least %d", version, store.LowestSchema)
		return nil
	}
	d.good(area, "the schema has version %d", version)
	return nil
}

func (d *doctor) replica(area string, s server, primary *server) {
	if primary != nil && s.identifier != primary.identifier {
		d.bad(area, "make it anew as a physical standby of the primary (docs/postgresql.md)", "it belongs to another cluster than the primary")
		return
	}
	if !s.standby {
		switch {
		case primary == nil:
			d.warn(area, "look again once the primary answers: two primaries are two histories", "it is no standby, and whether it is the primary itself cannot be told")
		case s.started.Equal(primary.started):
			d.warn(area, "leave XMTP_REPLICA_URL empty until there is a replica", "it is no standby; it is the primary itself")
		default:
			d.bad(area, "stop one of the two: two primaries are two histories", "it is no standby: it takes writes of its own")
		}
		return
	}
	if !s.feedback {
		d.bad(area, "ALTER SYSTEM SET hot_standby_feedback = on at the replica, and reload", "hot_standby_feedback is off: a long read and a vacuum stop its replay")
	} else if s.feedbackEvery != 1 {
		d.warn(area, "ALTER SYSTEM SET wal_receiver_status_interval = '1s' at the replica, and reload", "wal_receiver_status_interval is %d s, expected 1 s: old versions of busy rows stay that long and slow publishes down", s.feedbackEvery)
	}
	if !s.streaming {
		d.bad(area, "is the primary reachable from it? Its log says why not", "it does not stream from its primary")
	}
	if primary == nil {
		return
	}
	if behind := primary.position - s.position; behind > farBehindBytes {
		d.warn(area, "docs/runbooks/ReplicaLagging.md", "it is %d MiB behind the primary", behind>>20)
	} else {
		d.good(area, "it follows the primary, %d bytes behind", max(behind, 0))
	}
}
