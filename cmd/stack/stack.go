// Package stack runs the whole backend in one process on loopback: PostgreSQL
// with a streaming replica, NATS and the four roles behind one gateway. The dev
// stack, the end-to-end tests and the benchmarks start this same stack.
package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/gateway"
	"github.com/xmtp-selfhosted/backend/services/publisher"
	"github.com/xmtp-selfhosted/backend/services/reader"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// Options say where and how a stack runs.
type Options struct {
	// Dir holds the databases and endpoints.json.
	Dir string
	// Environment is XMTP_ variables for the roles. What is missing is filled in:
	// addresses on free ports of loopback, an identifier, and servers of the
	// stack's own where no database or bus is named.
	Environment map[string]string
	// Settings are parameters of the databases.
	Settings map[string]string
	// Clock is the admission clock of the publisher; nil is the machine's.
	Clock func() time.Time
	// Progress is told, in a few words each, what takes a while. It may be nil.
	Progress func(step string)
	Logger   *slog.Logger
	// Telemetry has the metrics and traces of the roles; nil is none.
	Telemetry *telemetry.Telemetry
}

// Endpoints are the addresses of a running stack, as endpoints.json has them.
type Endpoints struct {
	Gateway    string `json:"gateway"`
	Publisher  string `json:"publisher"`
	Reader     string `json:"reader"`
	Streamer   string `json:"streamer"`
	PrimaryURL string `json:"primary_url"`
	ReplicaURL string `json:"replica_url"`
	NATSURL    string `json:"nats_url"`
	PID        int    `json:"pid"`
}

// File is the name of the endpoints file below Dir.
const File = "endpoints.json"

// Stack is a backend that runs. Its servers may be stopped and started by a
// test; its roles by StopRole and StartRole.
type Stack struct {
	Endpoints Endpoints
	Primary   *pglocal.Server
	Replica   *pglocal.Server
	NATS      *natslocal.Server

	options     Options
	environment map[string]string
	roles       map[Role]*running
}

// Role names a part of the stack.
type Role string

// The roles.
const (
	Publisher Role = "publisher"
	Reader    Role = "reader"
	Streamer  Role = "streamer"
	Gateway   Role = "gateway"
)

// startOrder is also the reverse of the order in which roles stop.
var startOrder = []Role{Publisher, Reader, Streamer, Gateway}

// running is a role that runs: cancel begins its drain, done has its error.
type running struct {
	cancel context.CancelFunc
	done   chan error
}

// Start brings the stack up and returns when the gateway answers. Stop ends it.
func Start(ctx context.Context, options Options) (_ *Stack, err error) {
	if options.Progress == nil {
		options.Progress = func(string) {}
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Stack{options: options, environment: map[string]string{}, roles: map[Role]*running{}}
	for name, value := range options.Environment {
		s.environment[name] = value
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := s.startServers(ctx); err != nil {
		return nil, err
	}
	s.fill("XMTP_IDENTIFIER", "local.xmtp.dev")
	for _, role := range startOrder {
		options.Progress("starting the " + string(role))
		if err := s.StartRole(role); err != nil {
			return nil, err
		}
	}
	options.Progress("waiting until the gateway serves")
	if err := s.waitReady(ctx); err != nil {
		return nil, err
	}
	return s, s.writeEndpoints()
}

// fill sets a variable that the caller left open and returns its value.
func (s *Stack) fill(name, value string) string {
	if s.environment[name] == "" {
		s.environment[name] = value
	}
	return s.environment[name]
}

// database is created on the stack's own primary.
const database = "xmtp"

// duplicateDatabase is the SQLSTATE of a database that exists.
const duplicateDatabase = "42P04"

func (s *Stack) startServers(ctx context.Context) error {
	if s.environment["XMTP_PRIMARY_URL"] == "" {
		if err := s.startDatabases(ctx); err != nil {
			return err
		}
	}
	if s.environment["XMTP_NATS_URL"] == "" {
		s.options.Progress("starting NATS")
		bus, err := natslocal.Start(natslocal.Options{})
		if err != nil {
			return fmt.Errorf("start NATS: %w", err)
		}
		s.NATS = bus
		s.environment["XMTP_NATS_URL"] = bus.URL()
	}
	s.Endpoints = Endpoints{
		PrimaryURL: s.environment["XMTP_PRIMARY_URL"],
		ReplicaURL: s.environment["XMTP_REPLICA_URL"],
		NATSURL:    s.environment["XMTP_NATS_URL"],
		PID:        os.Getpid(),
	}
	return nil
}

func (s *Stack) startDatabases(ctx context.Context) error {
	dir, err := filepath.Abs(filepath.Join(s.options.Dir, "postgres"))
	if err != nil {
		return fmt.Errorf("find the data directory: %w", err)
	}
	note, err := pglocal.PrepareDir(dir)
	if err != nil {
		return fmt.Errorf("prepare the data directory: %w", err)
	}
	if note != "" {
		s.options.Progress(note)
	}
	binaries, err := pglocal.EnsureInstalled(ctx, s.options.Progress)
	if err != nil {
		return err
	}
	s.options.Progress("starting PostgreSQL, the primary")
	s.Primary, err = pglocal.StartPrimary(ctx, pglocal.Options{
		Dir: filepath.Join(dir, "primary"), Settings: s.options.Settings, Binaries: binaries, Durable: true, Progress: s.options.Progress,
	})
	if err != nil {
		return fmt.Errorf("start the primary: %w", err)
	}
	if err := createDatabase(ctx, s.Primary.URL("postgres")); err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	// Before the replica is copied, so that it has the schema from its first moment.
	if _, err := store.Migrate(ctx, config.Secret(s.Primary.URL(database))); err != nil {
		return err
	}
	s.options.Progress("starting PostgreSQL, the replica")
	s.Replica, err = pglocal.StartReplica(ctx, s.Primary, pglocal.Options{
		Dir: filepath.Join(dir, "replica"), Binaries: binaries, Durable: true, Progress: s.options.Progress,
	})
	if err != nil {
		return fmt.Errorf("start the replica: %w", err)
	}
	s.environment["XMTP_PRIMARY_URL"] = s.Primary.URL(database)
	s.environment["XMTP_REPLICA_URL"] = s.Replica.URL(database)
	return nil
}

// createDatabase makes the backend's database on a primary that lacks it.
func createDatabase(ctx context.Context, url string) error {
	connection, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(ctx) }()
	_, err = connection.Exec(ctx, "CREATE DATABASE "+database)
	if server := (*pgconn.PgError)(nil); errors.As(err, &server) && server.Code == duplicateDatabase {
		return nil
	}
	return err
}

// StartRole starts a role that does not run, on the address that it had before
// if it ran before.
func (s *Stack) StartRole(role Role) error {
	listener, err := s.listen(role)
	if err != nil {
		return err
	}
	run, err := s.make(role, listener)
	if err != nil {
		return errors.Join(fmt.Errorf("make the %s: %w", role, err), listener.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	started := &running{cancel: cancel, done: make(chan error, 1)}
	go func() { started.done <- run(ctx) }()
	s.roles[role] = started
	return nil
}

// listen opens a role's address and makes it known to the gateway.
func (s *Stack) listen(role Role) (net.Listener, error) {
	variable, endpoint := "", (*string)(nil)
	switch role {
	case Publisher:
		variable, endpoint = "PUBLISHER", &s.Endpoints.Publisher
	case Reader:
		variable, endpoint = "READER", &s.Endpoints.Reader
	case Streamer:
		variable, endpoint = "STREAMER", &s.Endpoints.Streamer
	case Gateway:
		variable, endpoint = "GATEWAY", &s.Endpoints.Gateway
	}
	listener, err := listenOn(s.environment["XMTP_"+variable+"_LISTEN"])
	if err != nil {
		return nil, fmt.Errorf("the %s cannot listen (XMTP_%s_LISTEN), is something else running there? %w", role, variable, err)
	}
	*endpoint = listener.Addr().String()
	s.environment["XMTP_"+variable+"_LISTEN"] = *endpoint
	s.environment["XMTP_"+variable+"_ENDPOINT"] = *endpoint
	return listener, nil
}

// listenOn opens the address, or one on which nobody else listens when the role stops.
func listenOn(address string) (net.Listener, error) {
	if address == "" {
		return freeport.Listen()
	}
	return net.Listen("tcp", address)
}

func (s *Stack) make(role Role, listener net.Listener) (func(context.Context) error, error) {
	logger := s.options.Logger.With("role", string(role))
	metrics := telemetry.Discard()
	if s.options.Telemetry != nil {
		var err error
		if metrics, err = s.options.Telemetry.Metrics(context.Background(), string(role)); err != nil {
			return nil, err
		}
	}
	switch role {
	case Publisher:
		cfg, err := config.LoadFrom[publisher.Config](s.environment)
		if err != nil {
			return nil, err
		}
		made, err := publisher.New(cfg, publisher.Deps{Listener: listener, Logger: logger, Metrics: metrics, Clock: s.options.Clock})
		if err != nil {
			return nil, err
		}
		return made.Run, nil
	case Reader:
		cfg, err := config.LoadFrom[reader.Config](s.environment)
		if err != nil {
			return nil, err
		}
		made, err := reader.New(cfg, reader.Deps{Listener: listener, Logger: logger, Metrics: metrics})
		if err != nil {
			return nil, err
		}
		return made.Run, nil
	case Streamer:
		cfg, err := config.LoadFrom[streamer.Config](s.environment)
		if err != nil {
			return nil, err
		}
		made, err := streamer.New(cfg, streamer.Deps{Listener: listener, Logger: logger, Metrics: metrics})
		if err != nil {
			return nil, err
		}
		return made.Run, nil
	default:
		cfg, err := config.LoadFrom[gateway.Config](s.environment)
		if err != nil {
			return nil, err
		}
		made, err := gateway.New(cfg, gateway.Deps{Listener: listener, Logger: logger, Metrics: metrics, Version: "dev"})
		if err != nil {
			return nil, err
		}
		return made.Run, nil
	}
}

// StopRole drains a role and waits until it is gone.
func (s *Stack) StopRole(role Role) error {
	run := s.roles[role]
	if run == nil {
		return nil
	}
	delete(s.roles, role)
	run.cancel()
	return <-run.done
}

// Failed returns the error of a role that ended by itself, nil while all run.
// It returns when ctx ends, too.
func (s *Stack) Failed(ctx context.Context) error {
	group, watching := errgroup.WithContext(ctx)
	for role, run := range s.roles {
		group.Go(func() error {
			select {
			case err := <-run.done:
				run.done <- err // StopRole reads it again
				return fmt.Errorf("the %s ended: %w", role, err)
			case <-watching.Done():
				return nil
			}
		})
	}
	return group.Wait()
}

// Stop drains the roles, the gateway first, and ends the servers.
func (s *Stack) Stop() error {
	var errs []error
	if err := os.Remove(filepath.Join(s.options.Dir, File)); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for i := len(startOrder) - 1; i >= 0; i-- {
		errs = append(errs, s.StopRole(startOrder[i]))
	}
	if s.NATS != nil {
		s.NATS.Stop()
	}
	for _, server := range []*pglocal.Server{s.Replica, s.Primary} {
		if server != nil {
			errs = append(errs, server.Stop(pglocal.Fast))
		}
	}
	return errors.Join(errs...)
}

// Environment is the variables of the roles, with what was filled in.
func (s *Stack) Environment() map[string]string { return maps.Clone(s.environment) }

// writeEndpoints puts the file in place whole, so that who waits for it never
// reads half of it. It is for its owner alone: a URL may hold a password.
func (s *Stack) writeEndpoints() error {
	encoded, err := json.MarshalIndent(s.Endpoints, "", "  ")
	if err != nil {
		return fmt.Errorf("write the endpoints: %w", err)
	}
	target := filepath.Join(s.options.Dir, File)
	if err := os.WriteFile(target+".new", append(encoded, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the endpoints: %w", err)
	}
	return os.Rename(target+".new", target)
}
