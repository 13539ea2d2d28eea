package sweep

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is an instance and a hub that remember what they were asked: which
// windows are read is what these tests are about.
// Who reads or changes it holds mu: a test all the time but in step.
type script struct {
	mu      sync.Mutex
	base    store.Baseline
	pinErr  error
	err     error
	high    uint64
	xmax    uint64
	windows []store.SweepWindow
	hints   []uint64
	hinted  []store.SweepRow // of every hint, each of which is full
	events  []string
	pages   [][]store.SweepRow
	log     *logtest.Log
}

func (s *script) Pin(context.Context) (store.Baseline, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pinErr == nil {
		s.base.Epoch++
	}
	return s.base, s.pinErr
}

func (s *script) Verify(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *script) Sweep(_ context.Context, window store.SweepWindow, _ int) (store.SweepPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return store.SweepPage{}, s.err
	}
	s.windows = append(s.windows, window)
	page := store.SweepPage{High: s.high, Xmax: s.xmax}
	if window.High > 0 {
		page.High = window.High
	}
	if len(s.pages) > 0 {
		page.Rows, s.pages = s.pages[0], s.pages[1:]
		page.More = len(s.pages) > 0
	}
	return page, nil
}

func (s *script) Hint(_ context.Context, from uint64, _ int) (store.SweepPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hints = append(s.hints, from)
	return store.SweepPage{Rows: s.hinted, More: len(s.hinted) > 0}, nil
}

func (s *script) note(event string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event)
}

func (s *script) Found(notice.Lineage)   { s.note("found") }
func (s *script) Lost()                  { s.note("lost") }
func (s *script) Reset()                 { s.note("reset") }
func (s *script) Raise([]store.SweepRow) {}
func (s *script) Tick(time.Time)         {}

func run(t *testing.T, s *script, test func(serving *bool)) {
	synctest.Test(t, func(t *testing.T) {
		serving := false
		s.log = logtest.New()
		sweeper := New(Config{Interval: 250 * time.Millisecond, PageRows: 2}, Deps{
			Instance: s, Hub: s, Metrics: telemetry.Discard(), Logger: s.log.Logger, Serving: func(on bool) {
				s.mu.Lock()
				defer s.mu.Unlock()
				serving = on
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- sweeper.Run(ctx) }()
		defer func() {
			cancel()
			require.NoError(t, <-done)
		}()
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		test(&serving)
	})
}

// step lets one interval pass.
func (s *script) step() {
	s.mu.Unlock()
	time.Sleep(250 * time.Millisecond)
	synctest.Wait()
	s.mu.Lock()
}

func TestWindowsFollowEachOther(t *testing.T) {
	s := &script{base: store.Baseline{Xmin: 10}, high: 15, xmax: 15}
	run(t, s, func(serving *bool) {
		require.True(t, *serving)
		s.step()
		require.Equal(t, store.SweepWindow{Low: 10}, s.windows[0])
		s.high, s.xmax = 20, 20
		s.pages = [][]store.SweepRow{{{CommitXID: 16}}, {{CommitXID: 17}}, {}}
		s.step()
		s.step()
		require.Equal(t, []store.SweepWindow{{Low: 10}, {Low: 15}, {Low: 15},
			{Low: 15, High: 20, After: store.SweepRow{CommitXID: 16}}, {Low: 15, High: 20, After: store.SweepRow{CommitXID: 17}}, {Low: 20}}, s.windows)
		require.Empty(t, s.hints, "a window that saw everything needs no hint")
	})
}

func TestHintsStartASecondBack(t *testing.T) {
	s := &script{base: store.Baseline{Xmin: 10}, high: 10, xmax: 12}
	run(t, s, func(*bool) {
		for range 12 {
			s.step()
			s.xmax += 10
		}
		require.Equal(t, []uint64{10, 10, 10, 10}, s.hints[:4], "at first from the pin")
		require.Equal(t, s.xmax-10-40, s.hints[len(s.hints)-1])
		for _, w := range s.windows {
			require.EqualValues(t, 10, w.Low, "a hint moves no window")
		}
	})
}

func TestTheHintsOfASweepAreBounded(t *testing.T) {
	s := &script{base: store.Baseline{Xmin: 10}, high: 10, xmax: 1000, hinted: []store.SweepRow{{CommitXID: 20}}}
	run(t, s, func(*bool) {
		require.Equal(t, []uint64{10, 20, 21, 22}, s.hints, "on, also where a transaction alone fills a page")
		s.step()
		require.Len(t, s.hints, 2*hintPages)
	})
}

func TestAReconnectStartsAtTheLowerEnd(t *testing.T) {
	for name, c := range map[string]struct{ xmin, low uint64 }{"behind": {30, 30}, "ahead": {90, 50}} {
		t.Run(name, func(t *testing.T) {
			s := &script{base: store.Baseline{Xmin: 10}, high: 50, xmax: 50}
			run(t, s, func(serving *bool) {
				s.step()
				s.err, s.pinErr = errors.New("gone"), errors.New("gone")
				s.step()
				require.False(t, *serving)
				s.err, s.pinErr, s.base.Xmin, s.windows = nil, nil, c.xmin, nil
				s.step()
				require.True(t, *serving)
				s.step()
				require.Equal(t, c.low, s.windows[0].Low)
				require.Equal(t, []string{"found", "lost", "found"}, s.events)
			})
		})
	}
}

func TestAnotherLineageResetsBeforeItIsFound(t *testing.T) {
	s := &script{base: store.Baseline{Xmin: 10, Instance: store.Instance{Timeline: 1}}, high: 50, xmax: 50}
	run(t, s, func(*bool) {
		s.step()
		s.base.Instance.Timeline = 2
		s.base.Xmin = 500
		s.windows = nil
		s.err = &store.InstanceChangedError{}
		s.step()
		s.err = nil
		s.step()
		require.Equal(t, []string{"found", "lost", "reset", "found"}, s.events)
		require.EqualValues(t, 500, s.windows[0].Low)
	})
}

func TestEachCauseOfServingNothingIsLoggedOnce(t *testing.T) {
	away := func(port string) error { return fault.Wrap(fault.Unavailable, errors.New(port), "not reachable") }
	s := &script{pinErr: away("port 1")}
	run(t, s, func(serving *bool) {
		s.pinErr = away("port 2")
		s.step()
		s.pinErr = fault.Errorf(fault.Unavailable, "schema version 1")
		s.step()
		s.step()
		require.False(t, *serving)
		s.pinErr = nil
		s.step()
		require.True(t, *serving)
		s.err, s.pinErr = errors.New("gone"), away("port 3")
		s.step()
		require.Equal(t, 2, strings.Count(s.log.String(), "not reachable"))
		require.Equal(t, 1, strings.Count(s.log.String(), "schema version 1"))
	})
}
