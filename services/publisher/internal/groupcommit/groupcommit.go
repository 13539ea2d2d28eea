// Package groupcommit lets requests share transactions. While transactions are
// in flight, requests that are ready queue up, and the next transaction takes as
// many of them as its bounds allow, in arrival order. With nothing in flight a
// request starts at once.
//
// A process never has two transactions in flight that share a topic, so requests
// wait here in memory and not on row locks. At most one transaction with
// identity updates is in flight. When a shared transaction fails, its requests
// run again at once, each alone and side by side, so that a bad one never fails
// a neighbour. If what failed was the wait for a lock, requests on the very same
// topics stay together: they need the same locks, and could only run one after
// the other.
//
// It knows nothing of SQL: what a transaction does is the caller's.
package groupcommit

import (
	"context"
	"slices"
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
	// IsLockTimeout recognizes the failure of a transaction that waited too long
	// for a lock. It may be nil.
	IsLockTimeout func(error) bool
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

	mu       sync.Mutex
	queue    []*item[W] // arrival order
	waiting  int        // items of the queue that nobody gave up on
	rows     int        // of the waiting items
	busy     map[topic.Topic]struct{}
	inFlight int
	alone    int
	identity bool
	closed   bool
	// away is the last failure since a transaction succeeded, if it was that the
	// database is not available.
	away    error
	running sync.WaitGroup

	// flights are all transactions in flight, the oldest first.
	flights []*flight
	// watched says that a timer looks at the queue again when patience ends.
	watched bool
}

// flight is a transaction in flight.
type flight struct{ begun time.Time }

// item is work on its way. All fields but done and err are guarded by the mutex.
type item[W Work] struct {
	work     W
	deadline time.Time
	state    state
	retry    retry
	// failure is that of the first attempt, if there was one.
	failure error
	done    chan struct{}
	err     error // set before done is closed
}

type state uint8

const (
	queued state = iota
	started
	abandoned
)

// retry says in what company work runs.
type retry uint8

const (
	shared   retry = iota // the first time: with anybody
	together              // again, with work on the same topics
	alone
)

// New returns a committer that runs commit.
func New[W Work](cfg Config, commit Commit[W]) *Committer[W] {
	if cfg.IsLockTimeout == nil {
		cfg.IsLockTimeout = func(error) bool { return false }
	}
	if cfg.Concluded == nil {
		cfg.Concluded = func() {}
	}
	c := &Committer[W]{cfg: cfg, commit: commit, busy: map[topic.Topic]struct{}{}}
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
	it := &item[W]{work: work, deadline: deadline, done: make(chan struct{})}
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
	if it.state == queued {
		it.state = abandoned
		c.weigh(it, -1)
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
	case c.waiting >= c.cfg.MaxWaiting:
		return nil, errFull
	}
	c.queue = append(c.queue, it)
	c.weigh(it, 1)
	if !c.hasPlaceFor(it) { // what was queued before could not start before either
		c.watch()
		return nil, nil
	}
	return c.schedule(it), nil
}

// Close waits for what is in flight, and gives it up when ctx ends. Do fails from now
// on, also for what is still queued.
func (c *Committer[W]) Close(ctx context.Context) {
	defer c.giveUp()
	defer context.AfterFunc(ctx, c.giveUp)()
	c.mu.Lock()
	c.closed = true
	for _, it := range c.queue {
		c.finish(it, errClosed)
	}
	c.queue, c.waiting, c.rows = nil, 0, 0
	c.mu.Unlock()
	c.running.Wait()
}

// weigh adds an item to what is waiting, or takes it away.
func (c *Committer[W]) weigh(it *item[W], sign int) {
	rows, _ := it.work.Size()
	c.waiting += sign
	c.rows += sign * rows
}

// finish must not be called twice for an item.
func (c *Committer[W]) finish(it *item[W], err error) {
	if it.state == abandoned {
		return
	}
	it.err = c.explain(it, err)
	close(it.done)
}

// schedule starts every transaction that can start now. If one of them is own and
// nothing else, it is returned for the caller to run; own may be nil.
func (c *Committer[W]) schedule(own *item[W]) (run func()) {
	for {
		group, again := c.next()
		switch {
		case group == nil:
			c.watch()
			return run
		case len(group) == 1 && group[0] == own:
			run = c.start(group, again)
		default:
			commit := c.start(group, again)
			go func() {
				commit()
				c.cfg.Concluded()
			}()
		}
	}
}

// next takes the next group out of the queue. It goes through the queue in
// arrival order; what cannot start yet also holds back later work on its topics,
// so that nothing is overtaken for ever.
func (c *Committer[W]) next() (group []*item[W], again bool) {
	var forming former[W]
	var held map[topic.Topic]struct{}
	kept := c.queue[:0]
	for i, it := range c.queue {
		if it.state == abandoned {
			continue
		}
		if forming.full {
			kept = append(kept, c.queue[i:]...)
			break
		}
		startable := len(forming.group) > 0 || c.hasPlaceFor(it)
		if startable && !c.conflicts(it, held) && forming.add(it, &c.cfg) {
			continue
		}
		held = hold(held, it.work.AllTopics())
		kept = append(kept, it)
	}
	clear(c.queue[len(kept):])
	c.queue = kept
	return forming.group, forming.retry != shared
}

// former is a group that takes shape. Its first item decides its kind.
type former[W Work] struct {
	group       []*item[W]
	rows, bytes int
	identity    bool
	retry       retry
	// full says that nothing more is taken: a bound was met.
	full bool
}

// add takes an item in, unless it is of another kind or too much.
func (f *former[W]) add(it *item[W], cfg *Config) bool {
	rows, bytes := it.work.Size()
	if len(f.group) == 0 {
		f.identity, f.retry, f.full = it.work.HasIdentity(), it.retry, it.retry == alone
	} else {
		if it.retry != f.retry || it.retry == together && !slices.Equal(f.group[0].work.AllTopics(), it.work.AllTopics()) || it.work.HasIdentity() != f.identity {
			return false
		}
		if f.rows+rows > cfg.MaxRows || f.bytes+bytes > cfg.MaxBytes {
			f.full = true
			return false
		}
	}
	f.group = append(f.group, it)
	f.rows, f.bytes = f.rows+rows, f.bytes+bytes
	return true
}

// hasPlaceFor says whether a group that begins with the item may be in flight.
func (c *Committer[W]) hasPlaceFor(it *item[W]) bool {
	switch {
	case it.work.HasIdentity() && c.identity:
		return false
	case it.retry != shared:
		return c.alone < c.cfg.MaxAlone
	default:
		return it.work.HasIdentity() || c.inFlight == 0 ||
			c.inFlight < c.cfg.MaxInFlight && (c.rows >= c.cfg.FillRows || c.patienceLeft() <= 0)
	}
}

// patienceLeft is how long the oldest transaction in flight, of which there must be
// one, may still take before another starts beside it without company.
func (c *Committer[W]) patienceLeft() time.Duration {
	return c.cfg.Patience - time.Since(c.flights[0].begun)
}

// watch has the queue looked at again when patience ends, if anything waits. A
// transaction that nothing waits for costs no timer.
func (c *Committer[W]) watch() {
	if c.watched || c.waiting == 0 || len(c.flights) == 0 {
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

func (c *Committer[W]) conflicts(it *item[W], held map[topic.Topic]struct{}) bool {
	for _, name := range it.work.AllTopics() {
		if _, ok := c.busy[name]; ok {
			return true
		}
		if _, ok := held[name]; ok {
			return true
		}
	}
	return false
}

func hold(held map[topic.Topic]struct{}, topics []topic.Topic) map[topic.Topic]struct{} {
	if held == nil {
		held = make(map[topic.Topic]struct{}, len(topics))
	}
	for _, name := range topics {
		held[name] = struct{}{}
	}
	return held
}

// start takes a group into flight and returns what has to be run next.
func (c *Committer[W]) start(group []*item[W], again bool) (run func()) {
	identity := group[0].work.HasIdentity()
	c.occupy(group, again, identity)
	for _, it := range group {
		c.weigh(it, -1)
	}
	this := &flight{begun: time.Now()}
	c.flights = append(c.flights, this)
	c.running.Add(1)
	return func() {
		err := c.run(group, again)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.flights = slices.DeleteFunc(c.flights, func(f *flight) bool { return f == this })
		c.vacate(group, again, identity)
		c.conclude(group, err)
		c.schedule(nil)
		c.running.Done()
	}
}

// run gives a group its time limit and commits it.
func (c *Committer[W]) run(group []*item[W], again bool) (err error) {
	if c.cfg.Recovered != nil {
		defer func() {
			if p := recover(); p != nil {
				err = c.cfg.Recovered(p)
			}
		}()
	}
	works := make([]W, len(group))
	for i, it := range group {
		works[i] = it.work
	}
	limit := time.Now().Add(c.cfg.Timeout)
	if again || len(group) == 1 {
		limit = group[0].deadline // it came first
	}
	ctx, cancel := context.WithDeadline(c.base, limit)
	defer cancel()
	return c.commit(ctx, works, again)
}

// conclude answers the requests of a group that ended, or puts them back to run
// once more.
func (c *Committer[W]) conclude(group []*item[W], err error) {
	if err == nil {
		c.away = nil
	} else if fault.KindOf(err) == fault.Unavailable && !c.cfg.IsLockTimeout(err) {
		c.away = err
	}
	var again []*item[W]
	for _, it := range group {
		next, ok := c.nextTry(it, len(group), err)
		if !ok {
			c.finish(it, err)
			continue
		}
		it.retry, it.state = next, queued
		if it.failure == nil {
			it.failure = err
		}
		c.weigh(it, 1)
		again = append(again, it)
	}
	if len(again) > 0 {
		c.queue = append(again, c.queue...) // they came first
	}
}

// nextTry says how work of a group that failed runs again, if at all.
func (c *Committer[W]) nextTry(it *item[W], company int, err error) (retry, bool) {
	if err == nil || c.closed || !isWorthRetrying(err, company) || !time.Now().Before(it.deadline) {
		return 0, false
	}
	locked := c.cfg.IsLockTimeout(err)
	switch {
	case it.retry == shared && locked:
		return together, true
	case it.retry == shared, it.retry == together && company > 1 && !locked:
		return alone, true
	default:
		return 0, false
	}
}

// isWorthRetrying is false for what no second attempt can change, or must not: what
// broke with nobody beside it is not to look like success.
func isWorthRetrying(err error, company int) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.TooLong, fault.HeadMoved:
		return false
	case fault.Broken:
		return company > 1
	default:
		return true
	}
}

func (c *Committer[W]) occupy(group []*item[W], again, identity bool) {
	for _, it := range group {
		it.state = started
		for _, name := range it.work.AllTopics() {
			c.busy[name] = struct{}{}
		}
	}
	c.count(again, identity, 1)
	if identity {
		c.identity = true
	}
}

func (c *Committer[W]) vacate(group []*item[W], again, identity bool) {
	for _, it := range group {
		for _, name := range it.work.AllTopics() {
			delete(c.busy, name)
		}
	}
	c.count(again, identity, -1)
	if identity {
		c.identity = false
	}
}

func (c *Committer[W]) count(again, identity bool, change int) {
	switch {
	case again:
		c.alone += change
	case !identity:
		c.inFlight += change
	}
}
