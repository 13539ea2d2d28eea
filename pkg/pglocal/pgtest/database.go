package pgtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

const (
	statementWithin = 30 * time.Second
	replayWithin    = 30 * time.Second
	pollEvery       = 5 * time.Millisecond
)

// Migrate brings an empty database to the schema that a test needs. It must close its connections.
type Migrate func(ctx context.Context, url string) error

// DB is a database of one test.
type DB struct {
	Name       string
	PrimaryURL string
	ReplicaURL string // empty when the test asked for none
}

// Database returns the address of a new, empty database on the shared primary. It is dropped with the test.
func Database(t testing.TB) string {
	t.Helper()
	primary := Primary(t)
	return primary.URL(get(t).create(t, primary, "template0"))
}

// Migrated returns a new database with a schema, which can be read on the shared replica too. The schema is made once for
// the whole binary by the first call with this function, which is told apart from others by its code: two closures of
// one function literal count as one. It is dropped with the test.
func Migrated(t testing.TB, migrate Migrate) DB {
	t.Helper()
	primary, replica := Cluster(t)
	db := MigratedPrimary(t, migrate)
	db.ReplicaURL = replica.URL(db.Name)
	WaitReplayed(t, primary, replica)
	return db
}

// MigratedPrimary is Migrated without the replica, for tests that do not read from one.
func MigratedPrimary(t testing.TB, migrate Migrate) DB {
	t.Helper()
	s := get(t)
	primary := Primary(t)
	template, err := s.template(t.Context(), primary, migrate)
	if err != nil {
		t.Fatal(err)
	}
	name := s.create(t, primary, template)
	return DB{Name: name, PrimaryURL: primary.URL(name)}
}

// WaitReplayed returns when the replica shows all that was committed on the primary before the call.
func WaitReplayed(t testing.TB, primary, replica *pglocal.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), replayWithin)
	defer cancel()
	if err := waitReplayed(ctx, primary, replica); err != nil {
		t.Fatalf("the replica does not show what the primary has committed: %v", err)
	}
}

func waitReplayed(ctx context.Context, primary, replica *pglocal.Server) error {
	var position string
	err := withConn(ctx, primary, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&position)
	})
	if err != nil {
		return err
	}
	return withConn(ctx, replica, func(conn *pgx.Conn) error {
		for {
			var reached bool
			err := conn.QueryRow(ctx, `SELECT coalesce(pg_last_wal_replay_lsn() >= $1::pg_lsn, false)`, position).Scan(&reached)
			if err != nil || reached {
				return err
			}
			if err := sleep(ctx, pollEvery); err != nil {
				return err
			}
		}
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// template returns the name of the database that holds the schema, which the first call makes.
func (s *suite) template(ctx context.Context, primary *pglocal.Server, migrate Migrate) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := reflect.ValueOf(migrate).Pointer()
	if name, ok := s.templates[key]; ok {
		return name, nil
	}
	name := fmt.Sprintf("template_%d", len(s.templates)+1)
	err := execute(ctx, primary, "CREATE DATABASE "+name+" TEMPLATE template0")
	if err == nil {
		err = migrate(ctx, primary.URL(name))
	}
	if err == nil {
		// Nobody may connect to it any more, or it could not be copied at that moment.
		err = execute(ctx, primary, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false")
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("make a database with the schema: %w", err),
			execute(context.WithoutCancel(ctx), primary, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"))
	}
	s.templates[key] = name
	return name, nil
}

// create makes a database and drops it when the test ends.
func (s *suite) create(t testing.TB, primary *pglocal.Server, template string) string {
	t.Helper()
	s.mu.Lock()
	s.databases++
	name := fmt.Sprintf("test_%d", s.databases)
	s.mu.Unlock()
	if err := copyDatabase(t.Context(), primary, name, template); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context is cancelled by now.
		if err := execute(context.Background(), primary, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop a database: %v", err)
		}
	})
	return name
}

// objectInUse is what PostgreSQL answers while a connection to the template still ends.
const objectInUse = "55006"

func copyDatabase(ctx context.Context, primary *pglocal.Server, name, template string) error {
	ctx, cancel := context.WithTimeout(ctx, statementWithin)
	defer cancel()
	for {
		err := execute(ctx, primary, "CREATE DATABASE "+name+" TEMPLATE "+template)
		var refusal *pgconn.PgError
		if !errors.As(err, &refusal) || refusal.Code != objectInUse {
			return err
		}
		if sleep(ctx, pollEvery) != nil {
			return err
		}
	}
}

func execute(ctx context.Context, server *pglocal.Server, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, statementWithin)
	defer cancel()
	return withConn(ctx, server, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

func withConn(ctx context.Context, server *pglocal.Server, use func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return use(conn)
}
