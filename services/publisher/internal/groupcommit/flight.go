package groupcommit

import (
	"context"
	"slices"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// flight is a transaction, from its forming until its requests have their outcome.
// Nobody else has a topic of its requests meanwhile.
type flight[W Work] struct {
	group       []*item[W]
	lines       []*line[W] // of their topics
	one         [1]*line[W]
	kind        kind
	rows, bytes int
	begun       time.Time
}

// takes says whether an item may join the others.
func (f *flight[W]) takes(it *item[W], cfg *Config) bool {
	return f.rows+it.rows <= cfg.MaxRows && f.bytes+it.bytes <= cfg.MaxBytes
}

// next forms a transaction of the given kind from what waits, the oldest first, or
// returns nil.
func (c *Committer[W]) next(k kind) *flight[W] {
	first := c.queue.oldest(k)
	if first == nil {
		return nil
	}
	f := &flight[W]{kind: k}
	f.lines = f.one[:0]
	c.queue.take(first, f)
	switch first.retry {
	case alone:
	case together:
		for it := c.queue.behind(first); it != nil && it.retry == together && slices.Equal(it.topics(), first.topics()) && f.takes(it, &c.cfg); it = c.queue.behind(first) {
			c.queue.take(it, f)
		}
	default:
		for it := c.queue.oldest(k); it != nil && f.takes(it, &c.cfg); it = c.queue.oldest(k) {
			c.queue.take(it, f)
		}
	}
	c.queue.seal(f)
	return f
}

// launch counts a transaction among those in flight.
func (c *Committer[W]) launch(f *flight[W]) {
	f.begun = time.Now()
	switch {
	case f.kind.again():
		c.alone++
	case !f.kind.identity():
		c.flights = append(c.flights, f)
	}
	c.identity = c.identity || f.kind.identity()
	c.running.Add(1)
}

// fly runs a transaction and what follows from its end.
func (c *Committer[W]) fly(f *flight[W]) {
	err := c.run(f)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case f.kind.again():
		c.alone--
	case !f.kind.identity():
		c.flights = slices.DeleteFunc(c.flights, func(other *flight[W]) bool { return other == f })
	}
	c.identity = c.identity && !f.kind.identity()
	c.conclude(f, err)
	c.schedule(nil)
	c.running.Done()
}

// run gives a transaction its time limit and commits it.
func (c *Committer[W]) run(f *flight[W]) (err error) {
	if c.cfg.Recovered != nil {
		defer func() {
			if p := recover(); p != nil {
				err = c.cfg.Recovered(p)
			}
		}()
	}
	works := make([]W, len(f.group))
	for i, it := range f.group {
		works[i] = it.work
	}
	limit := f.begun.Add(c.cfg.Timeout)
	if f.kind.again() || len(f.group) == 1 {
		limit = f.group[0].deadline // it came first
	}
	ctx, cancel := context.WithDeadline(c.base, limit)
	defer cancel()
	return c.commit(ctx, works, f.kind.again())
}

// conclude answers the requests of a transaction that ended, or puts them back to run
// once more, before all that came later.
func (c *Committer[W]) conclude(f *flight[W], err error) {
	if err == nil {
		c.away = nil
	} else if c.isAway(err) {
		c.away = err
	}
	for _, it := range slices.Backward(f.group) {
		next, ok := c.nextTry(it, len(f.group), err)
		if !ok {
			c.finish(it, err)
			continue
		}
		it.retry = next
		if it.failure == nil {
			it.failure = err
		}
		c.queue.putBack(it)
	}
	c.queue.release(f)
}

// isAway says that a transaction failed since the database is away or another one.
func (c *Committer[W]) isAway(err error) bool {
	return fault.KindOf(err) == fault.Unavailable && !c.cfg.LostItsLocks(err)
}

// nextTry says how work of a transaction that failed runs again, if at all: after a lost
// wait for a lock, or after what may have been the fault of a neighbour.
func (c *Committer[W]) nextTry(it *item[W], company int, err error) (retry, bool) {
	if err == nil || c.closed || !time.Now().Before(it.deadline) {
		return 0, false
	}
	switch {
	case c.cfg.LostItsLocks(err):
		return together, it.retry == shared
	case company == 1 || it.retry == alone || c.isAway(err):
		return 0, false
	}
	switch fault.KindOf(err) {
	case fault.Invalid, fault.TooLong, fault.HeadMoved: // what no second attempt can change
		return 0, false
	default:
		return alone, true
	}
}
