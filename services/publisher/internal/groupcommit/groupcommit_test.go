package groupcommit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/groupcommit"
)

// work is a named request.
type work struct {
	name        string
	topics      []topic.Topic
	rows, bytes int
	identity    bool
}

func (w *work) AllTopics() []topic.Topic { return w.topics }
func (w *work) Size() (rows, bytes int)  { return w.rows, w.bytes }
func (w *work) HasIdentity() bool        { return w.identity }

func on(name string, topics ...topic.Topic) *work {
	return &work{name: name, topics: topics, rows: 1, bytes: 1}
}

func update(name string, topics ...topic.Topic) *work {
	w := on(name, topics...)
	w.identity = true
	return w
}

// transaction is one that the committer began and the test ends.
type transaction struct {
	names []string
	again bool
	ctx   context.Context //nolint:containedctx // the test looks at its deadline
	end   chan error
}

// database is a fake whose transactions last until the test ends them. It checks
// what must always hold.
type database struct {
	t         *testing.T
	began     chan *transaction
	committer *groupcommit.Committer[*work]

	mu       sync.Mutex
	busy     map[topic.Topic]bool
	identity bool

	abandoned chan struct{} // ends what a failed test left in flight
}

func config() groupcommit.Config {
	return groupcommit.Config{MaxInFlight: 2, MaxAlone: 3, MaxRows: 4, MaxBytes: 100, MaxWaiting: 1000, Timeout: 2 * time.Second}
}

func start(t *testing.T, cfg groupcommit.Config) *database {
	t.Helper()
	d := &database{t: t, began: make(chan *transaction, 1000), busy: map[topic.Topic]bool{}, abandoned: make(chan struct{})}
	t.Cleanup(func() { close(d.abandoned) })
	d.committer = groupcommit.New(cfg, d.commit)
	return d
}

func (d *database) commit(ctx context.Context, group []*work, again bool) error {
	tx := &transaction{again: again, ctx: ctx, end: make(chan error, 1)}
	mine := map[topic.Topic]bool{}
	d.mu.Lock()
	for _, w := range group {
		tx.names = append(tx.names, w.name)
		for _, name := range w.topics {
			if d.busy[name] && !mine[name] {
				d.t.Errorf("two transactions share topic %q", name)
			}
			d.busy[name], mine[name] = true, true
		}
	}
	if group[0].identity {
		if d.identity {
			d.t.Error("two identity transactions are in flight")
		}
		d.identity = true
	}
	d.mu.Unlock()
	d.began <- tx
	var err error
	select {
	case err = <-tx.end:
	case <-d.abandoned:
	case <-ctx.Done():
		err = ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range mine {
		delete(d.busy, name)
	}
	if group[0].identity {
		d.identity = false
	}
	return err
}

// caller is one that waits for its work.
type caller struct {
	cancel context.CancelFunc
	result chan error
}

const callerLimit = 5 * time.Second

// submit hands work in and returns once it is queued or in flight.
func (d *database) submit(w *work) *caller {
	ctx, cancel := context.WithTimeout(context.Background(), callerLimit)
	c := &caller{cancel: cancel, result: make(chan error, 1)}
	go func() {
		defer cancel()
		deadline, _ := ctx.Deadline()
		c.result <- d.committer.Do(ctx, w, deadline)
	}()
	synctest.Wait()
	return c
}

// next is the transaction that has begun, or nil.
func (d *database) next() *transaction {
	synctest.Wait()
	select {
	case tx := <-d.began:
		return tx
	default:
		return nil
	}
}

// expect requires that a transaction of exactly these requests has begun.
func (d *database) expect(names ...string) *transaction {
	d.t.Helper()
	tx := d.next()
	require.NotNil(d.t, tx, "no transaction began, expected one of %v", names)
	require.Equal(d.t, names, tx.names)
	return tx
}

// expectEach requires that transactions of one request each have begun, side by
// side. They are returned in the order of the names.
func (d *database) expectEach(names ...string) []*transaction {
	d.t.Helper()
	found := make([]*transaction, len(names))
	for range names {
		tx := d.next()
		require.NotNil(d.t, tx, "fewer transactions than expected: %v", names)
		require.Len(d.t, tx.names, 1)
		require.True(d.t, tx.again)
		at := slices.Index(names, tx.names[0])
		require.GreaterOrEqual(d.t, at, 0, "%q began, expected %v", tx.names[0], names)
		found[at] = tx
	}
	return found
}

func (d *database) expectNone() {
	d.t.Helper()
	if tx := d.next(); tx != nil {
		d.t.Fatalf("a transaction of %v began, expected none", tx.names)
	}
}

func (c *caller) expect(t *testing.T, want error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c.result:
		require.ErrorIs(t, err, want)
	default:
		t.Fatal("the caller still waits")
	}
}

func (c *caller) expectWaiting(t *testing.T) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c.result:
		t.Fatalf("the caller has its answer: %v", err)
	default:
	}
}

func TestASingleClientWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		begun := time.Now()
		for range 10 {
			c := d.submit(on("a", "t"))
			d.expect("a").end <- nil
			c.expect(t, nil)
		}
		require.Zero(t, time.Since(begun), "time passed that nothing needed")
	})
}

// What follows a shared transaction begins once its callers have their outcome. A
// caller that ran its own sees to it itself.
func TestWhatFollowsATransactionComesAfterItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		concluded := make(chan struct{})
		cfg.Concluded = func() { concluded <- struct{}{} }
		d := start(t, cfg)
		own := d.submit(on("own", "1"))
		tx := d.expect("own")
		a, b := d.submit(on("a", "1")), d.submit(on("b", "1"))
		tx.end <- nil
		own.expect(t, nil)
		select {
		case <-concluded:
			t.Fatal("a caller that ran its own transaction has it concluded by another")
		default:
		}
		d.expect("a", "b").end <- nil
		a.expect(t, nil)
		b.expect(t, nil)
		<-concluded
	})
}

func TestWhatWaitsSharesTheNextTransactionInArrivalOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		d.submit(on("first", "1"))
		d.submit(on("second", "2"))
		first, second := d.expect("first"), d.expect("second")
		for i := range 6 {
			d.submit(on(fmt.Sprintf("w%d", i), topic.Topic(fmt.Sprintf("t%d", i%2))))
		}
		d.expectNone()
		first.end <- nil
		third := d.expect("w0", "w1", "w2", "w3") // the bound of rows
		second.end <- nil
		d.expectNone() // w4 and w5 are on topics of the third
		third.end <- nil
		d.expect("w4", "w5").end <- nil
	})
}

func TestWorkOnABusyTopicWaitsAndHoldsBackItsSuccessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		d.submit(on("first", "a"))
		first := d.expect("first")
		both := d.submit(on("both", "a", "b"))
		after := d.submit(on("after", "b")) // b is free, but both came first
		other := d.submit(on("other", "c"))
		d.expect("other").end <- nil
		other.expect(t, nil)
		both.expectWaiting(t)
		first.end <- nil
		d.expect("both", "after").end <- nil
		both.expect(t, nil)
		after.expect(t, nil)
	})
}

func TestBoundsOfBytesAndWorkBeyondTheBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		d.submit(on("first", "1"))
		d.submit(on("second", "2"))
		first, second := d.expect("first"), d.expect("second")
		sized := func(name string, rows, bytes int) {
			d.submit(&work{name: name, topics: []topic.Topic{topic.Topic(name)}, rows: rows, bytes: bytes})
		}
		sized("a", 1, 60)
		sized("b", 1, 40)
		sized("c", 1, 1)
		sized("large", 5, 1000)
		sized("d", 1, 1)
		first.end <- nil
		third := d.expect("a", "b") // exactly the bound
		second.end <- nil
		fourth := d.expect("c")
		third.end <- nil
		large := d.expect("large")
		require.False(t, large.again)
		deadline, _ := large.ctx.Deadline()
		require.Equal(t, callerLimit, time.Until(deadline), "by itself, a request has all the time of its caller")
		fourth.end <- nil
		d.expect("d").end <- nil
		large.end <- nil
	})
}

func TestIdentityGroupsAreApartAndOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		d.submit(on("m1", "1"))
		d.submit(on("m2", "2"))
		m1, m2 := d.expect("m1"), d.expect("m2")
		d.submit(update("u1", "i1"))
		u1 := d.expect("u1") // has a place of its own
		d.submit(update("u2", "i2"))
		d.submit(on("m3", "3"))
		d.submit(update("u3", "i2")) // the same inbox: the judge decides about the second
		d.expectNone()
		u1.end <- nil
		u2 := d.expect("u2", "u3")
		m1.end <- nil
		d.expect("m3").end <- nil
		u2.end <- nil
		m2.end <- nil
		d.expectNone()
	})
}

func TestAFailedGroupRunsAgainAtOnceEachAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		blocker := []*caller{d.submit(on("x", "x")), d.submit(on("y", "y"))}
		x, y := d.expect("x"), d.expect("y")
		a, b, c, e := d.submit(on("a", "1")), d.submit(on("b", "2")), d.submit(on("c", "1")), d.submit(on("e", "3"))
		x.end <- nil
		group := d.expect("a", "b", "c", "e")
		late := d.submit(on("late", "1"))
		group.end <- errors.New("one of them is bad")
		alone := d.expectEach("a", "b", "e") // c shares a topic with a
		ra, rb, re := alone[0], alone[1], alone[2]
		for _, tx := range alone {
			deadline, ok := tx.ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, callerLimit, time.Until(deadline), "alone, a request has all the time of its caller")
		}
		d.expectNone()
		bad := errors.New("bad")
		rb.end <- bad
		b.expect(t, bad)
		d.expectNone() // once more is enough
		ra.end <- nil
		a.expect(t, nil)
		d.expect("c").end <- nil
		c.expect(t, nil)
		d.expect("late").end <- nil
		late.expect(t, nil)
		re.end <- nil
		e.expect(t, nil)
		y.end <- nil
		blocker[0].expect(t, nil)
		blocker[1].expect(t, nil)
	})
}

func TestRetriesSideBySideAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.MaxInFlight, cfg.MaxRows, cfg.MaxAlone = 1, 100, 3
		d := start(t, cfg)
		d.submit(on("x", "x"))
		x := d.expect("x")
		for i := range 5 {
			d.submit(on(fmt.Sprint(i), topic.Topic(fmt.Sprint(i))))
		}
		x.end <- nil
		d.expect("0", "1", "2", "3", "4").end <- errors.New("broken")
		alone := d.expectEach("0", "1", "2")
		d.expectNone()
		alone[1].end <- nil // each place that becomes free is taken
		d.expect("3").end <- nil
		d.expect("4").end <- nil
		alone[0].end <- nil
		alone[2].end <- nil
	})
}

// What no second attempt can change is not tried again, nor what broke with nobody
// beside it: it is not to be tried until it looks well.
func TestARefusalOfTheWholeAndWhatBreaksByItselfAreNotTriedAgain(t *testing.T) {
	for _, failure := range []error{fault.Errorf(fault.TooLong, "too long"), fault.Errorf(fault.Broken, "internal error")} {
		t.Run(failure.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := start(t, config())
				c := d.submit(on("a", "1"))
				d.expect("a").end <- failure
				c.expect(t, failure)
				d.expectNone()
			})
		})
	}
}

func TestACallerThatLeavesBeforeTheStartTakesItsWorkAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		first := d.submit(on("first", "1"))
		tx := d.expect("first")
		waiting := d.submit(on("waiting", "1"))
		stays := d.submit(on("stays", "1"))
		waiting.cancel()
		waiting.expect(t, context.Canceled)
		tx.end <- nil
		first.expect(t, nil)
		d.expect("stays").end <- nil
		stays.expect(t, nil)
	})
}

func TestACallerThatLeavesLaterLeavesItsTransactionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.MaxInFlight = 1
		d := start(t, cfg)
		first := d.submit(on("first", "0"))
		before := d.expect("first")
		a, b := d.submit(on("a", "1")), d.submit(on("b", "2"))
		before.end <- nil
		first.expect(t, nil)
		tx := d.expect("a", "b")
		a.cancel()
		a.expect(t, context.Canceled)
		require.NoError(t, tx.ctx.Err(), "the transaction has its own context")
		after := d.submit(on("after", "1"))
		d.expectNone() // the topic is still taken
		tx.end <- nil
		b.expect(t, nil)
		d.expect("after").end <- nil
		after.expect(t, nil)
	})
}

// A caller that has a transaction for itself runs it, and gets to know its outcome
// even if nobody waits for the answer any more.
func TestACallerThatRunsItsTransactionStaysToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		c := d.submit(on("a", "1"))
		tx := d.expect("a")
		c.cancel()
		synctest.Wait()
		require.Empty(t, c.result)
		require.NoError(t, tx.ctx.Err(), "the transaction has its own context")
		tx.end <- nil
		c.expect(t, nil)
	})
}

// A transaction that panics ends neither the process nor its neighbours, and leaves
// nothing behind that is taken.
func TestAPanicIsTheFailureOfItsOwnWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errPanic := errors.New("panicked")
		cfg := config()
		cfg.Recovered = func(any) error { return errPanic }
		first := make(chan struct{})
		c := groupcommit.New(cfg, func(_ context.Context, group []*work, _ bool) error {
			for _, w := range group {
				switch w.name {
				case "first":
					<-first
				case "bad":
					panic("always")
				}
			}
			return nil
		})
		var outcomes sync.Map
		var running sync.WaitGroup
		do := func(name string) {
			running.Go(func() { outcomes.Store(name, c.Do(t.Context(), on(name, "1"), time.Now().Add(time.Minute))) })
			synctest.Wait()
		}
		do("first")
		do("good")
		do("bad") // shares the next transaction with good
		close(first)
		running.Wait()
		for name, want := range map[string]error{"first": nil, "good": nil, "bad": errPanic} {
			got, _ := outcomes.Load(name)
			if want == nil {
				require.Nil(t, got, name)
			} else {
				require.ErrorIs(t, got.(error), want, name)
			}
		}
		require.ErrorIs(t, c.Do(t.Context(), on("bad", "1"), time.Now().Add(time.Minute)), errPanic, "also on its caller's goroutine")
		require.NoError(t, c.Do(t.Context(), on("good", "1"), time.Now().Add(time.Minute)), "its topic is free")
		c.Close(t.Context())
	})
}

// A caller learns why its first attempt failed, not that there was no time for a second.
func TestTheFirstFailureExplainsALateOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locked := errors.New("locked")
		cfg := config()
		cfg.LostItsLocks = func(err error) bool { return errors.Is(err, locked) }
		d := start(t, cfg)
		a := d.submit(on("a", "1"))
		d.expect("a").end <- locked
		again := d.expect("a")
		time.Sleep(callerLimit) // the second does not end
		a.expect(t, locked)
		again.end <- nil

		b := d.submit(on("b", "1"))
		d.expect("b").end <- locked
		d.expect("b").end <- fault.Errorf(fault.Late, "too late")
		b.expect(t, locked)
		d.expectNone()
	})
}

// So does one that waited in vain since the database was away.
func TestADatabaseThatIsAwayExplainsALateFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.MaxInFlight = 1
		d := start(t, cfg)
		away := fault.Errorf(fault.Unavailable, "the database is away")
		a := d.submit(on("a", "1"))
		tx := d.expect("a")
		late := d.submit(on("late", "2"))
		tx.end <- away
		a.expect(t, away)
		d.expect("late") // does not end
		time.Sleep(callerLimit)
		late.expect(t, away)

		b := d.submit(on("b", "1"))
		d.expect("b").end <- nil
		b.expect(t, nil)
		c := d.submit(on("c", "1"))
		d.expect("c") // does not end either, with a database that is there
		time.Sleep(callerLimit)
		c.expect(t, context.DeadlineExceeded)
	})
}

// When the database is away, or another one, nothing is repeated with what was found out
// on the one before: all go back to their callers, whether they were alone or not.
func TestALostDatabaseIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.MaxInFlight = 1
		d := start(t, cfg)
		away := fault.Errorf(fault.Unavailable, "the database is away")
		first := d.submit(on("first", "1"))
		tx := d.expect("first")
		a, b := d.submit(on("a", "1")), d.submit(on("b", "2"))
		tx.end <- away
		first.expect(t, away)
		d.expect("a", "b").end <- away
		a.expect(t, away)
		b.expect(t, away)
		d.expectNone()
	})
}

func TestCloseGivesUpWhatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		a := d.submit(on("a", "1"))
		d.expect("a") // does not end by itself
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		d.committer.Close(ctx)
		require.Equal(t, time.Second, time.Since(begun))
		a.expect(t, context.Canceled)
	})
}

func TestTransactionsHaveTheirOwnTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		d.submit(on("x", "x"))
		d.submit(on("y", "y"))
		x, y := d.expect("x"), d.expect("y")
		a, b := d.submit(on("a", "1")), d.submit(on("b", "2"))
		x.end <- nil
		d.expect("a", "b") // never ends by itself
		time.Sleep(config().Timeout)
		d.expectEach("a", "b")[0].end <- nil // the other never ends either
		a.expect(t, nil)
		time.Sleep(callerLimit - config().Timeout)
		b.expect(t, context.DeadlineExceeded)
		y.end <- nil
		d.expectNone()
	})
}

func TestAFullQueueRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.MaxInFlight, cfg.MaxWaiting = 1, 2
		d := start(t, cfg)
		d.submit(on("a", "1"))
		a := d.expect("a")
		b, c := d.submit(on("b", "1")), d.submit(on("c", "1"))
		refused := d.submit(on("d", "1"))
		err := <-refused.result
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
		c.cancel() // makes room
		c.expect(t, context.Canceled)
		e := d.submit(on("e", "1"))
		a.end <- nil
		d.expect("b", "e").end <- nil
		b.expect(t, nil)
		e.expect(t, nil)
	})
}

func TestCloseAnswersEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		a := d.submit(on("a", "1"))
		tx := d.expect("a")
		queued := d.submit(on("b", "1"))
		closed := make(chan struct{})
		go func() {
			d.committer.Close(t.Context())
			close(closed)
		}()
		synctest.Wait()
		require.Equal(t, fault.Unavailable, fault.KindOf(<-queued.result))
		select {
		case <-closed:
			t.Fatal("Close did not wait for the transaction")
		default:
		}
		tx.end <- nil
		a.expect(t, nil)
		<-closed
		late := d.submit(on("late", "1"))
		require.Equal(t, fault.Unavailable, fault.KindOf(<-late.result))
	})
}

func TestAfterALockTimeoutWorkOnTheSameTopicsStaysTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locked := errors.New("locked")
		cfg := config()
		cfg.MaxInFlight, cfg.MaxRows = 1, 100
		cfg.LostItsLocks = func(err error) bool { return errors.Is(err, locked) }
		d := start(t, cfg)
		d.submit(on("x", "x"))
		x := d.expect("x")
		callers := map[string]*caller{}
		for _, w := range []*work{on("a", "1"), on("b", "1"), on("c", "1", "2"), on("d", "3"), on("e", "1")} {
			callers[w.name] = d.submit(w)
		}
		x.end <- nil
		d.expect("a", "b", "c", "d", "e").end <- locked
		first, second := d.next(), d.next() // c waits for a and b, e for c
		if len(first.names) == 1 {
			first, second = second, first
		}
		require.Equal(t, []string{"a", "b"}, first.names)
		require.Equal(t, []string{"d"}, second.names)
		require.True(t, first.again)
		d.expectNone()
		second.end <- locked
		callers["d"].expect(t, locked)
		first.end <- errors.New("a bad one") // then it is each alone after all
		d.expect("a").end <- nil
		d.expect("b").end <- nil
		d.expect("c").end <- nil
		d.expect("e").end <- nil
		for _, name := range []string{"a", "b", "c", "e"} {
			callers[name].expect(t, nil)
		}
	})
}

func TestACallerWithLittleTimeDoesNotShortenTheTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		go func() { _ = d.committer.Do(ctx, on("a", "1"), begun.Add(callerLimit)) }()
		tx := d.expect("a")
		time.Sleep(callerLimit - time.Nanosecond)
		require.NoError(t, tx.ctx.Err())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Error(t, tx.ctx.Err())
	})
}

func TestNobodyWaitsPastTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, config())
		d.submit(on("first", "1"))
		d.expect("first") // does not end by itself
		begun := time.Now()
		err := d.committer.Do(context.Background(), on("waiting", "1"), begun.Add(time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begun))
	})
}

// A further transaction waits for company, at the bound exactly, or until the one
// in flight has taken longer than the patience.
func TestAFurtherTransactionWaitsForCompany(t *testing.T) {
	filling := config()
	filling.FillRows, filling.Patience = 3, 10*time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		d := start(t, filling)
		first := d.submit(on("first", "a"))
		one := d.expect("first")
		second, third := d.submit(on("second", "b")), d.submit(on("third", "c"))
		d.expectNone()
		fourth := d.submit(on("fourth", "d"))
		two := d.expect("second", "third", "fourth")
		one.end <- nil
		two.end <- nil
		for _, c := range []*caller{first, second, third, fourth} {
			c.expect(t, nil)
		}
		d.committer.Close(t.Context())
	})
	synctest.Test(t, func(t *testing.T) {
		d := start(t, filling)
		first := d.submit(on("first", "a"))
		one := d.expect("first")
		second := d.submit(on("second", "b"))
		time.Sleep(filling.Patience - 1)
		d.expectNone()
		time.Sleep(time.Nanosecond)
		two := d.expect("second")
		two.end <- nil
		second.expect(t, nil)
		one.end <- nil
		first.expect(t, nil)

		// A transaction that ended in time leaves nothing overdue.
		third := d.submit(on("third", "a"))
		three := d.expect("third")
		fourth := d.submit(on("fourth", "b"))
		d.expectNone()
		three.end <- nil
		d.expect("fourth").end <- nil
		third.expect(t, nil)
		fourth.expect(t, nil)
		time.Sleep(2 * filling.Patience)
		d.committer.Close(t.Context())
	})
	// Patience counts from the start of the oldest that is still in flight.
	synctest.Test(t, func(t *testing.T) {
		d := start(t, filling)
		first := d.submit(on("first", "a"))
		one := d.expect("first")
		time.Sleep(filling.Patience / 2)
		second, third, fourth := d.submit(on("second", "b")), d.submit(on("third", "c")), d.submit(on("fourth", "d"))
		two := d.expect("second", "third", "fourth")
		fifth := d.submit(on("fifth", "e"))
		time.Sleep(filling.Patience / 4)
		one.end <- nil
		first.expect(t, nil)
		time.Sleep(filling.Patience*3/4 - 1)
		d.expectNone()
		time.Sleep(time.Nanosecond)
		d.expect("fifth").end <- nil
		two.end <- nil
		for _, c := range []*caller{second, third, fourth, fifth} {
			c.expect(t, nil)
		}
		d.committer.Close(t.Context())
	})
}
