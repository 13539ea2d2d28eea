// Package groupcommit lets requests share transactions. While transactions are
// in flight, requests that are ready queue up, and the next transaction takes as
// many of them as its bounds allow, in arrival order. With nothing in flight a
// request starts at once.
//
// A process never has two transactions in flight that share a topic, so requests
// wait here in memory and not on row locks. At most one transaction with
// identity updates is in flight. When a shared transaction fails, its requests
// run again at once, each alone and side by side, so that a bad one never fails
// a neighbour. If what failed was the wait for a lock, they run again too, and those
// on the very same topics stay together: they need the same locks, and could only run
// one after the other. Nothing else is repeated here: when the database is away, or
// another one, a request has to be validated again first.
//
// Each topic has a line of those that wait for it, so that the work for a transaction
// is that for its own requests and what waits right behind them, however many wait.
//
// It knows nothing of SQL: what a transaction does is the caller's.
package groupcommit

import (
	"context"
	"sync"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Work is a request that is ready to be committed.
type Work interface {
	// AllTopics are the distinct topics that the work locks.
	AllTopics() []topic.Topic
	// Size is what the work counts towards the bounds of a group.
	Size() (rows, bytes int)
	// HasIdentity says that identity updates are in it.
	HasIdentity() bool
}

// Config bounds groups and what waits for them.
type Config struct {
	// MaxInFlight is how many shared transactions run at a time, beside the one
	// with identity updates and those that run alone again.
	MaxInFlight int
	// FillRows is how many rows have to wait before a further shared transaction
	// starts beside one in flight: two large groups cost less than many small
	// ones. It does not hold once a transaction has been in flight for Patience.
	FillRows int
	Patience time.Duration
	// MaxAlone is how many requests run alone at a time after a failure.
	MaxAlone int
	// MaxRows and MaxBytes bound a group. A larger request is a group by itself.
	MaxRows, MaxBytes int
	// MaxWaiting bounds the queue; a request beyond it is Unavailable.
	MaxWaiting int
	// Timeout bounds a transaction that requests share. One that runs alone has
	// the time that its request has left.
	Timeout time.Duration
	// LostItsLocks recognizes the failure of a transaction that waited too long
	// for a lock. It may be nil.
	LostItsLocks func(error) bool
	// Recovered turns a panic of a transaction into its failure. Without it a panic
	// ends the process.
	Recovered func(any) error
	// Concluded runs after a transaction whose callers know their outcome: what they
	// need not wait for. A caller that ran its transaction itself does that by itself.
	// It may be nil.
	Concluded func()
}

// Commit runs one transaction for a group. It sets the outcome of each request
// in the work itself and returns nil, or fails as a whole. ctx has the time limit
// of the transaction and is not that of any caller. Again says that the group is one
// request, or requests on the same topics, that failed once and have all the time they
// have left.
type Commit[W Work] func(ctx context.Context, group []W, again bool) error

// Committer queues work. Make it with New.
type Committer[W Work] struct {
	cfg    Config
	commit Commit[W]
	// base ends when transactions in flight are given up.
	base   context.Context
	giveUp context.CancelFunc

	mu    sync.Mutex
	queue queue[W]
	// flights are the shared transactions in flight, the oldest first, but for the one
	// with identity updates.
	flights  []*flight[W]
	alone    int
	identity bool
	closed   bool
	// away is the last failure since a transaction succeeded, if it was that the
	// database is not available.
	away    error
	running sync.WaitGroup
	// watched says that a timer looks at the queue again when patience ends.
	watched bool
}

// New returns a committer that runs commit.
func New[W Work](cfg Config, commit Commit[W]) *Committer[W] {
	if cfg.LostItsLocks == nil {
		cfg.LostItsLocks = func(error) bool { return false }
	}
	if cfg.Concluded == nil {
		cfg.Concluded = func() {}
	}
	c := &Committer[W]{cfg: cfg, commit: commit, queue: newQueue[W]()}
	c.base, c.giveUp = context.WithCancel(context.Background())
	return c
}

var (
	errFull   = fault.Errorf(fault.Unavailable, "too many publish requests are waiting for the database")
	errClosed = fault.Errorf(fault.Unavailable, "the publisher is shutting down")
)

// Do commits work and waits for it, until ctx ends or the deadline. Who goes away
// before the transaction starts takes the work along; who shares a transaction
// leaves it to go on without it, and the work must not be touched again. A caller
// whose work can start at once and alone runs the transaction itself, to its end.
func (c *Committer[W]) Do(ctx context.Context, work W, deadline time.Time) error {
	it := newItem(work, deadline)
	run, err := c.enqueue(it)
	if err != nil {
		return err
	}
	if run != nil { // one goroutine less to wake, and to wake us
		run()
	}
	select {
	case <-it.done:
		return it.err
	default:
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	err = context.DeadlineExceeded
	select {
	case <-it.done:
		return it.err
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.waits {
		c.queue.remove(it)
	}
	return c.explain(it, err)
}

// explain is the error of work that ended with err: if what ended it is that its time
// was up, then why its first attempt failed, or that the database was away.
func (c *Committer[W]) explain(it *item[W], err error) error {
	switch {
	case err == nil || fault.KindOf(err) != fault.Late:
		return err
	case it.failure != nil:
		return it.failure
	case c.away != nil:
		return c.away
	default:
		return err
	}
}

// enqueue queues work. If it can start at once and alone, the caller has to run
// it.
func (c *Committer[W]) enqueue(it *item[W]) (run func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, errClosed
	case c.queue.len >= c.cfg.MaxWaiting:
		return nil, errFull
	}
	c.queue.add(it)
	return c.schedule(it), nil
}

// Close waits for what is in flight, and gives it up when ctx ends. Do fails from now
// on, also for what is still queued.
func (c *Committer[W]) Close(ctx context.Context) {
	defer c.giveUp()
	defer context.AfterFunc(ctx, c.giveUp)()
	c.mu.Lock()
	c.closed = true
	c.queue.drain(func(it *item[W]) { c.finish(it, errClosed) })
	c.mu.Unlock()
	c.running.Wait()
}

// finish must not be called twice for an item.
func (c *Committer[W]) finish(it *item[W], err error) {
	it.err = c.explain(it, err)
	close(it.done)
}

// schedule starts every transaction that can start now. If one of them is own and
// nothing else, it is returned for the caller to run; own may be nil.
func (c *Committer[W]) schedule(own *item[W]) (run func()) {
	for kind := range kinds {
		for c.hasPlaceFor(kind) {
			f := c.next(kind)
			if f == nil {
				break
			}
			c.launch(f)
			if len(f.group) == 1 && f.group[0] == own {
				run = func() { c.fly(f) }
				continue
			}
			go func() {
				c.fly(f)
				c.cfg.Concluded()
			}()
		}
	}
	c.watch()
	return run
}

// hasPlaceFor says whether another transaction of a kind may be in flight.
func (c *Committer[W]) hasPlaceFor(k kind) bool {
	switch {
	case k.identity() && c.identity:
		return false
	case k.again():
		return c.alone < c.cfg.MaxAlone
	default:
		return k.identity() || len(c.flights) == 0 ||
			len(c.flights) < c.cfg.MaxInFlight && (c.queue.rows >= c.cfg.FillRows || c.patienceLeft() <= 0)
	}
}

// patienceLeft is how long the oldest shared transaction in flight, of which there must
// be one, may still take before another starts beside it without company.
func (c *Committer[W]) patienceLeft() time.Duration {
	return c.cfg.Patience - time.Since(c.flights[0].begun)
}

// watch has the queue looked at again when patience ends, if anything waits. A
// transaction that nothing waits for costs no timer.
func (c *Committer[W]) watch() {
	if c.watched || c.queue.len == 0 || len(c.flights) == 0 {
		return
	}
	left := c.patienceLeft()
	if left <= 0 {
		return
	}
	c.watched = true
	time.AfterFunc(left, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watched = false
		c.schedule(nil)
	})
}
