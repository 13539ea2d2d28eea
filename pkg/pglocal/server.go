// Package pglocal runs real PostgreSQL servers, a primary and streaming replicas, from the machine's own binaries in
// folders of the caller's choice. The dev stack and all tests use it.
//
// The servers listen on 127.0.0.1 only, without a socket file, and let every local user in as the superuser postgres:
// they are for development. They are independent processes and outlive a caller that is killed; the next start in the
// same folder stops what was left running and goes on with the data. It relies on /proc, thus on Linux.
package pglocal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

const (
	stopWithin  = 30 * time.Second // then Stop becomes harsher
	killWithin  = 10 * time.Second
	startWithin = 2 * time.Minute // long enough for crash recovery of a development database

	freePortTries = 5

	pidFile   = "postmaster.pid"
	superuser = "postgres"
)

// Errors that a caller may want to tell apart.
var (
	ErrPortTaken = errors.New("the port is taken")
	ErrInUse     = errors.New("another running process uses this data directory")
)

// Mode is how Stop treats the clients that are connected.
type Mode int

// The modes are those of pg_ctl.
const (
	Fast      Mode = iota // end their sessions and write a checkpoint
	Immediate             // end at once, without a checkpoint: the next start recovers
	Smart                 // wait until they have gone
)

// Options say where and how a server runs.
type Options struct {
	// Dir holds all that belongs to the server; it is created when missing. See PrepareDir for what root must mind.
	Dir string
	// Port on 127.0.0.1; 0 picks a free one.
	Port int
	// Settings are configuration parameters; what is not named keeps PostgreSQL's default. A replica takes over those
	// of its primary and adds its own.
	Settings map[string]string
	// Binaries to use; the zero value means Find, or the installation that made the data when there is some.
	Binaries Binaries
	// Durable flushes a new data directory to disk before the first start. It does not change the setting fsync.
	Durable bool
	// Progress is told, in a few words each, what takes a while. It may be nil.
	Progress func(step string)
}

// Server is one PostgreSQL server. Its methods may be called from any goroutine.
type Server struct {
	options Options // Dir is absolute and without links, Port is chosen
	as      account
	lock    *dirLock
	primary *Server // what a replica follows, nil for a primary

	mu     sync.Mutex
	run    *postmaster // the last one started
	paused bool
}

// StartPrimary starts the server in options.Dir, which it fills first if that is empty, and returns when it takes
// connections. A server left there by a process that died is stopped first. ctx bounds the start only.
func StartPrimary(ctx context.Context, options Options) (*Server, error) {
	s, err := newServer(options)
	if err != nil {
		return nil, err
	}
	if err := s.launch(ctx, options.Port == 0, s.createDatabase); err != nil {
		return nil, err
	}
	return s, nil
}

func newServer(options Options) (*Server, error) {
	if options.Dir == "" {
		return nil, errors.New("start PostgreSQL: no directory given")
	}
	dir, err := filepath.Abs(options.Dir)
	if err == nil {
		err = makeDir(dir)
	}
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	options.Dir = dir
	s := &Server{options: options}
	if s.as, err = accountFor(s.dataDir()); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	if !s.as.canEnter(dir) {
		return nil, fmt.Errorf("start PostgreSQL: user %s cannot enter %s: open the folders above it (chmod o+x)", s.as.name, dir)
	}
	if s.options.Binaries, err = s.chooseBinaries(); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	return s, nil
}

// chooseBinaries keeps to the version that made the data: another major version cannot read it.
func (s *Server) chooseBinaries() (Binaries, error) {
	chosen := s.options.Binaries
	if chosen.Dir == "" {
		var err error
		if chosen, err = Find(); err != nil {
			return Binaries{}, err
		}
	}
	made, err := dataVersion(s.dataDir())
	if err != nil || made == 0 || made == chosen.Version {
		return chosen, err
	}
	if s.options.Binaries.Dir == "" {
		if other, err := findMajor(made); err == nil {
			return other, nil
		}
	}
	return Binaries{}, fmt.Errorf("the data in %s was made by PostgreSQL %d, which PostgreSQL %d cannot read: install version %d or remove that directory",
		s.options.Dir, made, chosen.Version, made)
}

// launch takes the directory over, lets fill create what is missing in it and starts the server. On failure nothing
// keeps running and the directory is free again.
func (s *Server) launch(ctx context.Context, anyPort bool, fill func(context.Context) error) error {
	var err error
	for range freePortTries {
		if err = s.launchOnce(ctx, anyPort, fill); !anyPort || !errors.Is(err, ErrPortTaken) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	return nil
}

func (s *Server) launchOnce(ctx context.Context, anyPort bool, fill func(context.Context) error) error {
	if err := s.claim(ctx, true); err != nil {
		return err
	}
	err := fill(ctx)
	if err == nil && anyPort {
		s.options.Port, err = freeport.Pick()
	}
	if err == nil {
		err = s.spawn(ctx)
	}
	if err != nil {
		s.lock.release()
	}
	return err
}

// claim locks the directory and stops what an earlier owner left in it.
func (s *Server) claim(ctx context.Context, politely bool) error {
	lock, err := lockDir(ctx, s.options.Dir)
	if err != nil {
		return err
	}
	if err := s.takeOver(ctx, politely); err != nil {
		lock.release()
		return err
	}
	s.lock = lock
	return nil
}

// URL is the address of a database on this server, for its superuser. It stays the same across stops and starts.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(superuser),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.options.Port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port is the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.options.Port }

// Dir is the server's folder, absolute and without links.
func (s *Server) Dir() string { return s.options.Dir }

// LogFile is where the server writes its log.
func (s *Server) LogFile() string { return filepath.Join(s.options.Dir, "server.log") }

func (s *Server) dataDir() string       { return filepath.Join(s.options.Dir, "data") }
func (s *Server) unfinishedDir() string { return filepath.Join(s.options.Dir, "data.unfinished") }

// clusterName goes into the title of the server's processes, by which they are found again.
func (s *Server) clusterName() string { return "xmtp_" + shortHash(s.options.Dir) }

func (s *Server) progress(format string, args ...any) {
	if s.options.Progress != nil {
		s.options.Progress(fmt.Sprintf(format, args...))
	}
}

func (s *Server) current() *postmaster {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run
}

// Running reports whether the server's main process lives; a paused one does.
func (s *Server) Running() bool {
	run := s.current()
	if run == nil {
		return false
	}
	select {
	case <-run.exited:
		return false
	default:
		return true
	}
}

// Exited is closed when the server that runs now has ended, whoever ended it. It is nil before the first start.
func (s *Server) Exited() <-chan struct{} {
	if run := s.current(); run != nil {
		return run.exited
	}
	return nil
}

// Start starts a stopped or killed server again, on the same port and with the same settings, and returns when it takes
// connections.
func (s *Server) Start(ctx context.Context) error {
	if s.Running() {
		return errors.New("start PostgreSQL: it is running")
	}
	return s.launch(ctx, false, func(context.Context) error { return nil })
}

// Restart stops the server in Fast mode if it runs and starts it again.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(Fast); err != nil {
		return err
	}
	return s.Start(ctx)
}

// KillOrphan ends, by SIGKILL, what a process that died left running in a server's folder. It refuses with ErrInUse while
// a process that lives owns the folder.
func KillOrphan(ctx context.Context, dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	s := &Server{options: Options{Dir: dir}}
	if err := s.claim(ctx, false); err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	s.lock.release()
	return nil
}
