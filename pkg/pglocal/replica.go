package pglocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// followWithin is how long a replica may take from its start to the first byte from the primary.
const followWithin = 15 * time.Second

// StartReplica starts a streaming replica of a running primary in options.Dir and returns when it takes connections and
// follows the primary, through a replication slot of its own and with hot_standby_feedback. Data in the directory is
// used if it is a copy of this primary that can still follow, else it is replaced by a new copy.
func StartReplica(ctx context.Context, primary *Server, options Options) (*Server, error) {
	if options.Binaries.Dir == "" {
		options.Binaries = primary.options.Binaries
	}
	s, err := newServer(options)
	if err != nil {
		return nil, err
	}
	s.primary = primary
	anyPort := options.Port == 0
	if err := s.launch(ctx, anyPort, s.copyPrimary); err != nil {
		return nil, err
	}
	if s.follows(ctx) {
		return s, nil
	}
	if ctx.Err() == nil {
		// The primary no longer has what this copy lacks.
		s.progress("the replica cannot catch up: copying the primary again")
		if err := s.Stop(Immediate); err != nil {
			return nil, err
		}
		if err := s.launch(ctx, anyPort, s.copyAgain); err != nil {
			return nil, err
		}
		if s.follows(ctx) {
			return s, nil
		}
	}
	return nil, errors.Join(ctx.Err(), fmt.Errorf("start a replica: it does not follow the primary: %s", lastLine(s.logSince(s.current()))), s.Stop(Immediate))
}

func (s *Server) slotName() string { return "replica_" + shortHash(s.options.Dir) }

// replicaSettings name the primary on each start, because its port may be another one than at the last.
func (s *Server) replicaSettings() map[string]string {
	return map[string]string{
		"primary_conninfo":             s.primary.connInfo(),
		"primary_slot_name":            s.slotName(),
		"hot_standby":                  "on",
		"hot_standby_feedback":         "on",
		"wal_receiver_status_interval": "1", // what it still reads is kept: say often that it is read no more
	}
}

func (s *Server) connInfo() string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s sslmode=disable", s.options.Port, superuser)
}

// copyPrimary fills the directory from the primary unless it holds a replica of it.
func (s *Server) copyPrimary(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.primary.URL("postgres"))
	if err != nil {
		return fmt.Errorf("ask the primary: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, `SELECT pg_create_physical_replication_slot($1, true)
		WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)`, s.slotName())
	if err != nil {
		return fmt.Errorf("create a replication slot: %w", err)
	}
	var id int64
	if err := conn.QueryRow(ctx, `SELECT system_identifier FROM pg_control_system()`).Scan(&id); err != nil {
		return fmt.Errorf("ask the primary: %w", err)
	}
	usable, err := s.isReplicaOf(ctx, id)
	if err != nil {
		return err
	}
	if usable {
		return nil
	}
	return s.copyAgain(ctx)
}

// isReplicaOf reports whether the directory holds a replica, not one that was promoted since, of the cluster.
func (s *Server) isReplicaOf(ctx context.Context, systemID int64) (bool, error) {
	if _, err := os.Stat(filepath.Join(s.dataDir(), "standby.signal")); err != nil {
		return false, nil
	}
	out, err := s.runTool(exec.CommandContext(ctx, s.options.Binaries.path("pg_controldata"), "-D", s.dataDir()))
	if err != nil {
		return false, ctx.Err() // an unreadable copy is replaced
	}
	for line := range strings.Lines(out) {
		if value, ok := strings.CutPrefix(line, "Database system identifier:"); ok {
			return strings.TrimSpace(value) == strconv.FormatUint(uint64(systemID), 10), nil
		}
	}
	return false, nil
}

// copyAgain replaces what is in the directory by a copy of the primary.
func (s *Server) copyAgain(ctx context.Context) error {
	if err := removeAll(ctx, s.dataDir()); err != nil {
		return err
	}
	return s.fill(ctx, "copying the primary to a new replica", func(dir string) *exec.Cmd {
		args := []string{"-D", dir, "-d", s.primary.connInfo(), "-R", "-X", "stream", "-S", s.slotName(), "-c", "fast"}
		if !s.options.Durable {
			args = append(args, "--no-sync")
		}
		return exec.CommandContext(ctx, s.options.Binaries.path("pg_basebackup"), args...)
	})
}

// follows waits until the replica receives from the primary and reports whether it does. The replica's own word for it
// is no proof: its receiver says "streaming" before the primary has looked whether it still has what is asked for.
func (s *Server) follows(ctx context.Context) bool {
	replica, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return false
	}
	defer func() { _ = replica.Close(ctx) }()
	primary, err := pgx.Connect(ctx, s.primary.URL("postgres"))
	if err != nil {
		return false
	}
	defer func() { _ = primary.Close(ctx) }()
	var received, hasAll bool
	poll(ctx.Done(), followWithin, func() bool {
		err := errors.Join(
			replica.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE written_lsn > receive_start_lsn)`).Scan(&received),
			primary.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid
				WHERE slot_name = $1 AND state = 'streaming')`, s.slotName()).Scan(&hasAll))
		return err != nil || received || hasAll || strings.Contains(s.logSince(s.current()), walGone)
	})
	return received || hasAll
}

// walGone is in the log of a replica that was away for too long, when it asks for what the primary has removed.
const walGone = "has already been removed"

// Promote makes a replica a primary and returns when it takes writes. Its former primary is not touched.
func (s *Server) Promote(ctx context.Context) error {
	_, err := s.runTool(exec.CommandContext(ctx, s.options.Binaries.path("pg_ctl"),
		"promote", "-D", s.dataDir(), "-w", "-t", strconv.Itoa(int(startWithin/time.Second))))
	if err != nil {
		return fmt.Errorf("promote a replica: %w", err)
	}
	return nil
}
