// Package pgtest gives tests real PostgreSQL servers and databases. A test binary has one primary and one replica,
// started by the first test that asks for them, and each test gets databases of its own on them.
//
// TestMain of a package that uses it is one line:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// Servers and folders are gone when the binary ends, in whatever way: a panic, a timeout and a kill included.
package pgtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// startWithin bounds the start of a server, the copy for a replica included, on a busy machine.
const startWithin = 3 * time.Minute

// Option changes what Main does.
type Option func(*suite)

// Settings are configuration parameters of the shared servers, on top of PostgreSQL's defaults and of fsync=off, which
// makes them fast and only matters when the machine itself crashes.
func Settings(settings map[string]string) Option {
	return func(s *suite) { maps.Copy(s.settings, settings) }
}

// CheckLeaks makes the binary fail when goroutines are left after all tests and the servers have ended.
func CheckLeaks(options ...goleak.Option) Option {
	return func(s *suite) { s.findLeaks = func() error { return goleak.Find(options...) } }
}

// suite is what the tests of one binary share.
type suite struct {
	settings  map[string]string
	findLeaks func() error
	guard     *guard

	mu        sync.Mutex
	primary   *pglocal.Server
	replica   *pglocal.Server
	folders   int
	templates map[uintptr]string
	databases int
}

// shared is set by Main, once, before any test runs: tests reach what they share through package functions.
var shared *suite

// Main runs the tests of a binary and ends the process, as TestMain must.
func Main(m *testing.M, options ...Option) {
	if dir, ok := guardedDir(); ok {
		os.Exit(guardMain(dir))
	}
	s := &suite{settings: map[string]string{"fsync": "off"}, templates: map[uintptr]string{}}
	for _, o := range options {
		o(s)
	}
	shared = s
	code := m.Run()
	if err := s.close(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	if code == 0 && s.findLeaks != nil {
		if err := s.findLeaks(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// get returns the binary's suite.
func get(t testing.TB) *suite {
	t.Helper()
	if shared == nil {
		t.Fatal("this package has no TestMain that calls pgtest.Main")
	}
	return shared
}

// Primary returns the binary's shared primary. Tests must not stop it: OwnCluster is for those that do.
func Primary(t testing.TB) *pglocal.Server {
	t.Helper()
	primary, err := get(t).startPrimary()
	if err != nil {
		t.Fatal(err)
	}
	return primary
}

// Cluster returns the binary's shared primary and its streaming replica. Tests must not stop them.
func Cluster(t testing.TB) (primary, replica *pglocal.Server) {
	t.Helper()
	primary, replica, err := get(t).startCluster()
	if err != nil {
		t.Fatal(err)
	}
	return primary, replica
}

// OwnPrimary returns a primary that only this test uses and that ends with it. It has PostgreSQL's default settings
// apart from those given.
func OwnPrimary(t testing.TB, settings map[string]string) *pglocal.Server {
	t.Helper()
	return own(t, func(ctx context.Context, dir string) (*pglocal.Server, error) {
		return pglocal.StartPrimary(ctx, pglocal.Options{Dir: dir, Settings: settings})
	})
}

// OwnReplica returns a replica of a server of the test, which ends with the test. It has the primary's settings and those
// given.
func OwnReplica(t testing.TB, primary *pglocal.Server, settings map[string]string) *pglocal.Server {
	t.Helper()
	return own(t, func(ctx context.Context, dir string) (*pglocal.Server, error) {
		return pglocal.StartReplica(ctx, primary, pglocal.Options{Dir: dir, Settings: settings})
	})
}

// OwnCluster returns a primary and a replica that only this test uses, for tests that stop, pause or promote them. They
// have PostgreSQL's default settings apart from those given.
func OwnCluster(t testing.TB, settings map[string]string) (primary, replica *pglocal.Server) {
	t.Helper()
	primary = OwnPrimary(t, settings)
	return primary, OwnReplica(t, primary, nil)
}

// own runs a server until the test ends.
func own(t testing.TB, start func(ctx context.Context, dir string) (*pglocal.Server, error)) *pglocal.Server {
	t.Helper()
	dir, err := get(t).folder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	server, err := start(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Nobody needs its data, but a killed one would leave its processes to init to reap.
		if err := server.Stop(pglocal.Immediate); err != nil {
			t.Error(err)
		}
	})
	return server
}

// folder returns a new folder that the guard removes if this process cannot.
func (s *suite) folder() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.folderLocked()
}

func (s *suite) folderLocked() (string, error) {
	if s.guard == nil {
		g, err := startGuard()
		if err != nil {
			return "", err
		}
		s.guard = g
	}
	s.folders++
	return filepath.Join(s.guard.dir, fmt.Sprintf("server-%d", s.folders)), nil
}

func (s *suite) startPrimary() (*pglocal.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startPrimaryLocked()
}

func (s *suite) startPrimaryLocked() (*pglocal.Server, error) {
	if s.primary != nil {
		return s.primary, nil
	}
	dir, err := s.folderLocked()
	if err != nil {
		return nil, err
	}
	// The server outlives the test that happens to come first, and so does the context of its start.
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	s.primary, err = pglocal.StartPrimary(ctx, pglocal.Options{Dir: dir, Settings: s.settings})
	return s.primary, err
}

func (s *suite) startCluster() (primary, replica *pglocal.Server, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if primary, err = s.startPrimaryLocked(); err != nil {
		return nil, nil, err
	}
	if s.replica != nil {
		return primary, s.replica, nil
	}
	dir, err := s.folderLocked()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	s.replica, err = pglocal.StartReplica(ctx, primary, pglocal.Options{Dir: dir})
	return primary, s.replica, err
}

// close ends the shared servers and removes all folders.
func (s *suite) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first error
	for _, server := range []*pglocal.Server{s.replica, s.primary} {
		if server == nil {
			continue
		}
		if err := server.Stop(pglocal.Immediate); err != nil && first == nil {
			first = err
		}
	}
	if s.guard == nil {
		return first
	}
	if err := s.guard.finish(); err != nil && first == nil {
		first = err
	}
	return first
}
