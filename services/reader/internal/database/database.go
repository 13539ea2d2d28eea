// Package database keeps watch over the servers that a reader reads from: a list
// of endpoints, each naming one server instance, of which the first that is up
// serves.
package database

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sync/errgroup"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Config is how the servers are watched.
type Config struct {
	// ProbeInterval is the time between two questions whether a server is up.
	ProbeInterval time.Duration `env:"DB_PROBE_INTERVAL" envDefault:"1s"`
	// ProbeTimeout is how long a server may take for the answer. Reads of a
	// server that does not answer end then.
	ProbeTimeout time.Duration `env:"DB_PROBE_TIMEOUT" envDefault:"3s"`
}

// Validate names each variable that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"DB_PROBE_INTERVAL", c.ProbeInterval}, {"DB_PROBE_TIMEOUT", c.ProbeTimeout}} {
		if d.value < time.Millisecond {
			errs = append(errs, fmt.Errorf("XMTP_%s is %v, expected at least 1ms", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// Set is a list of servers, in the order in which they are preferred.
type Set struct {
	name    string
	config  Config
	servers []*server
	changed func(server string, cause error)
}

// Open prepares the connections to the servers; none is reached before Run or
// the first read. metrics may be nil. changed is called by Run after a server went up, which has no cause, or down, or is
// down for another cause. options are of all connections. Close ends it.
func Open(name string, urls []config.Secret, cfg Config, pool store.PoolConfig, metrics *telemetry.Metrics, changed func(server string, cause error), options ...store.Option) (*Set, error) {
	options = append(store.ForReads(), options...)
	s := &Set{name: name, config: cfg, changed: changed}
	for i, url := range urls {
		opened, err := openServer(url, pool, options)
		if err != nil {
			s.Close()
			return nil, err
		}
		opened.name = name + "-" + strconv.Itoa(i)
		if opened.metrics = metrics; metrics != nil {
			opened.pool.Measure(metrics)
		}
		s.servers = append(s.servers, opened)
	}
	return s, nil
}

// Close waits for the reads in progress and closes all connections.
func (s *Set) Close() {
	for _, server := range s.servers {
		server.close()
	}
}

// Read runs a read on the first server that is up, and on the next ones if that
// goes away. A read may thus run more than once. It is Unavailable when no
// server is up.
func (s *Set) Read(ctx context.Context, read func(context.Context, *store.Pool) error) error {
	var last error
	for _, server := range s.servers {
		up, ok := server.isUp()
		if !ok {
			continue
		}
		last = server.read(ctx, up, read)
		if last == nil || fault.KindOf(last) != fault.Unavailable || ctx.Err() != nil {
			return last
		}
		server.suspect(last, s.config.ProbeInterval)
	}
	if last == nil {
		last = fault.Errorf(fault.Unavailable, "no %s database is reachable", s.name)
	}
	return last
}

// Up says whether a server answers and has the schema.
func (s *Set) Up() bool {
	for _, server := range s.servers {
		if _, ok := server.isUp(); ok && server.known() {
			return true
		}
	}
	return false
}

// Run watches the servers until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, server := range s.servers {
		group.Go(func() error {
			server.watch(ctx, s.config, s.changed)
			return nil
		})
	}
	return group.Wait()
}

// server is one endpoint. Until the first probe it counts as up for reads, so
// that they find out themselves, but is not known to be.
type server struct {
	// name says which of the role's databases it is, in metrics.
	name    string
	metrics *telemetry.Metrics
	pool    *store.Pool
	// probes has a connection of its own: a full pool is no sign of a dead server.
	probes *store.Pool

	mu     sync.Mutex
	probed bool
	asked  time.Time // of the last probe's end
	why    string    // it is down, as the last probe says
	// up ends when the server goes down, and with it the reads in progress.
	up   context.Context
	down context.CancelCauseFunc
	// suspected has room for one: a read found the server away.
	suspected chan struct{}
}

func openServer(url config.Secret, cfg store.PoolConfig, options []store.Option) (*server, error) {
	pool, err := store.Open(url, cfg, options...)
	if err != nil {
		return nil, err
	}
	single := cfg
	single.MaxConns = 1
	probes, err := store.Open(url, single, options...)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s := &server{pool: pool, probes: probes, suspected: make(chan struct{}, 1)}
	s.up, s.down = context.WithCancelCause(context.Background())
	return s, nil
}

func (s *server) close() {
	s.down(nil)
	s.pool.Close()
	s.probes.Close()
}

func (s *server) isUp() (context.Context, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up, s.up.Err() == nil
}

func (s *server) known() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.probed
}

// read ends early, as Unavailable, when the server is found to be down.
func (s *server) read(ctx, up context.Context, read func(context.Context, *store.Pool) error) error {
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(up, func() { cancel(context.Cause(up)) })()
	err := read(reading, s.pool)
	if err != nil && up.Err() != nil && ctx.Err() == nil {
		return fault.Wrap(fault.Unavailable, err, "the database is not reachable")
	}
	return err
}

// suspect lets the server be asked at once whether it is up, unless it just was.
func (s *server) suspect(err error, interval time.Duration) {
	s.mu.Lock()
	recently := time.Since(s.asked) < interval/20
	s.mu.Unlock()
	if recently || errors.Is(err, store.ErrBusy) {
		return
	}
	select {
	case s.suspected <- struct{}{}:
	default:
	}
}

func (s *server) watch(ctx context.Context, cfg Config, changed func(server string, cause error)) {
	ticker := time.NewTicker(cfg.ProbeInterval)
	defer ticker.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, cfg.ProbeTimeout)
		err := s.probes.CheckSchema(asking)
		if err == nil {
			s.measureLag(asking)
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		if s.note(err) {
			changed(s.name, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.suspected: // by reads, as long as it counts as up
		}
	}
}

// measureLag is of no consequence when it fails.
func (s *server) measureLag(ctx context.Context) {
	if s.metrics == nil {
		return
	}
	if lag, err := s.probes.ReplicaLag(ctx); err == nil {
		s.metrics.ReplicaLag.Record(ctx, lag.Seconds(), metric.WithAttributes(attribute.String("server", s.name)))
	}
}

// note says whether the probe told something new.
func (s *server) note(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	why := ""
	if err != nil {
		why = fault.Of(err).Text() // the driver's text differs by port and address
	}
	news, wasUp := !s.probed || why != s.why, s.up.Err() == nil
	s.probed, s.why, s.asked = true, why, time.Now()
	if err == nil && !wasUp {
		s.pool.Reset() // its connections are to the server that went down
		s.up, s.down = context.WithCancelCause(context.Background())
	}
	if err != nil {
		s.down(err)
	}
	return news
}
