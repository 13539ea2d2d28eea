// Package sweep keeps a streamer bound to one database instance and finds what
// no commit notice announced: a publisher died between commit and notice, or the
// bus was away (docs/design.md#the-sweep, docs/design.md#one-instance).
//
// Each sweep reads the rows of the transactions in [low, high), where high is
// the xmin of the snapshot: every transaction below it has ended, so no row can
// appear later behind the window, and high is the next low. While a transaction
// stays open anywhere in the cluster high stands still. So each sweep also reads
// what is visible of the transactions that began after the snapshot of a second
// ago, as a hint that moves no window.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Config sets the pace of the sweep.
type Config struct {
	// Interval between sweeps: how late an envelope is whose notice was lost, and
	// how often a lagging replica is asked again.
	Interval time.Duration `env:"SWEEP_INTERVAL" envDefault:"250ms"`
	// PageRows is the length of one page of a sweep.
	PageRows int `env:"SWEEP_PAGE_ROWS" envDefault:"5000"`
}

// Validate names each variable that is out of range.
func (c Config) Validate() error {
	var errs []error
	if c.Interval < time.Millisecond {
		errs = append(errs, fmt.Errorf("XMTP_SWEEP_INTERVAL is %v, expected at least 1ms", c.Interval))
	}
	if c.PageRows < 1 {
		errs = append(errs, fmt.Errorf("XMTP_SWEEP_PAGE_ROWS is %d, expected at least 1", c.PageRows))
	}
	return errors.Join(errs...)
}

// Instance is the database instance of this streamer.
type Instance interface {
	Pin(ctx context.Context) (store.Baseline, error)
	Verify(ctx context.Context) error
	Sweep(ctx context.Context, window store.SweepWindow, limit int) (store.SweepPage, error)
	Hint(ctx context.Context, from uint64, limit int) (store.SweepPage, error)
}

// Hub is who hears of what the sweep finds.
type Hub interface {
	// Found: the database answers, and nothing of it was read before the window
	// began.
	Found(lineage notice.Lineage)
	// Lost: it does not answer.
	Lost()
	// Reset: what answers next is of another lineage.
	Reset()
	// Raise tells of stored envelopes.
	Raise(rows []store.SweepRow)
	// Tick ends each round, also those without a database.
	Tick(now time.Time)
}

// Deps are what a Sweeper needs beside its configuration.
type Deps struct {
	Instance Instance
	Hub      Hub
	Metrics  *telemetry.Metrics
	Logger   *slog.Logger
	// Serving hears whether there is a window: without one no stream is served.
	Serving func(bool)
}

// verifyEvery is how often the instance is asked who it is.
const verifyEvery = time.Second

// hintAge is how much older than a hint the snapshot is that it starts from.
const hintAge = time.Second

// Sweeper is the sweep loop. Run may be called once.
type Sweeper struct {
	config Config
	deps   Deps

	pinned bool
	why    string         // there is no pin, as it was logged; empty with one
	base   store.Baseline // the last pin; Epoch 0 is none
	low    uint64
	// snapshots are the ends of recent snapshots, oldest first.
	snapshots []snapshot
	verified  time.Time
	stands    time.Time // since when high has stood still
}

type snapshot struct {
	at   time.Time
	xmax uint64
}

// New prepares a sweeper.
func New(config Config, deps Deps) *Sweeper { return &Sweeper{config: config, deps: deps} }

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.config.Interval)
	defer ticker.Stop()
	for {
		s.round(ctx)
		s.deps.Hub.Tick(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// round pins the instance if it has to and sweeps it.
func (s *Sweeper) round(ctx context.Context) {
	if !s.pinned && !s.pin(ctx) {
		return
	}
	err := s.verify(ctx)
	if err == nil {
		err = s.sweep(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	s.deps.Logger.Warn("a sweep did not finish", "error", err)
	var changed *store.InstanceChangedError
	if errors.As(err, &changed) || s.deps.Instance.Verify(ctx) != nil {
		s.lost(ctx)
	}
}

// lost gives the instance up and looks at once whether another one answers.
func (s *Sweeper) lost(ctx context.Context) {
	s.pinned = false
	s.deps.Hub.Lost()
	s.deps.Serving(false)
	s.pin(ctx)
}

// pin binds to the instance that answers now.
func (s *Sweeper) pin(ctx context.Context) bool {
	base, err := s.deps.Instance.Pin(ctx)
	if err != nil {
		// The driver's text differs by port and address.
		if why := fault.Of(err).Text(); ctx.Err() == nil && why != s.why {
			s.why = why
			s.deps.Logger.Warn("the stream database cannot be used", "error", err)
		}
		return false
	}
	s.why = ""
	switch {
	case s.base.Epoch == 0:
		s.low = base.Xmin
	case s.base.Instance.SameLineage(base.Instance):
		// It may be another replica that is behind, or ahead.
		s.low = min(s.low, base.Xmin)
	default:
		s.deps.Logger.Warn("the stream database is of another lineage: all streams end")
		s.deps.Hub.Reset()
		s.low = base.Xmin
	}
	s.pinned, s.base = true, base
	s.verified, s.stands = time.Now(), time.Time{}
	s.snapshots = []snapshot{{s.verified, base.Xmin}}
	s.deps.Hub.Found(notice.Lineage{SystemIdentifier: base.Instance.SystemIdentifier, Timeline: base.Instance.Timeline})
	s.deps.Serving(true)
	s.deps.Logger.Info("bound to a database instance", "address", base.Instance.Address, "timeline", base.Instance.Timeline)
	return true
}

func (s *Sweeper) verify(ctx context.Context) error {
	now := time.Now()
	if now.Sub(s.verified) < verifyEvery {
		return nil
	}
	if err := s.deps.Instance.Verify(ctx); err != nil {
		return err
	}
	s.verified = now
	return nil
}

// sweep reads one window to its end.
func (s *Sweeper) sweep(ctx context.Context) error {
	window := store.SweepWindow{Low: s.low}
	for {
		page, err := s.deps.Instance.Sweep(ctx, window, s.config.PageRows)
		if err != nil {
			return err
		}
		s.deps.Hub.Raise(page.Rows)
		first := window.High == 0
		window.High = page.High
		if first {
			if err := s.hint(ctx, page); err != nil {
				return err
			}
		}
		if !page.More {
			break
		}
		window.After = page.Rows[len(page.Rows)-1]
	}
	// On a replica that is behind the one before, high may be below low.
	s.low = max(s.low, window.High)
	return nil
}

// hint looks beyond a window that stands still.
func (s *Sweeper) hint(ctx context.Context, page store.SweepPage) error {
	now := time.Now()
	s.snapshots = append(s.snapshots, snapshot{now, page.Xmax})
	for len(s.snapshots) > 1 && now.Sub(s.snapshots[1].at) >= hintAge {
		s.snapshots = s.snapshots[1:]
	}
	if page.High == page.Xmax || page.High > s.low {
		s.stands = time.Time{}
	}
	if page.High == page.Xmax {
		s.deps.Metrics.SweepAge.Record(ctx, 0)
		return nil // nothing is open, the window saw everything
	}
	if s.stands.IsZero() {
		s.stands = now
	}
	s.deps.Metrics.SweepAge.Record(ctx, now.Sub(s.stands).Seconds())
	return s.readHints(ctx, max(page.High, s.snapshots[0].xmax))
}

// hintPages bounds the hints of one sweep, to so many times Config.PageRows
// envelopes; what is beyond comes with the window.
const hintPages = 4

func (s *Sweeper) readHints(ctx context.Context, from uint64) error {
	for range hintPages {
		hint, err := s.deps.Instance.Hint(ctx, from, s.config.PageRows)
		if err != nil {
			return err
		}
		s.deps.Hub.Raise(hint.Rows)
		if !hint.More {
			return nil
		}
		// The last transaction may be incomplete: it is read again, unless it
		// alone fills a page.
		from = max(from+1, hint.Rows[len(hint.Rows)-1].CommitXID)
	}
	return nil
}
