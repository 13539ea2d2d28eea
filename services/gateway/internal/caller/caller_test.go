package caller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

func budgets() Budgets {
	return Budgets{Bodies: budget.New(8<<20, 0), Answers: budget.New(8<<20, 2<<20)}
}

func ended() { panic("the connection was closed") }

// unused is the patience of who must not need any.
func unused(context.Context) context.Context { panic("there was no room") }

func expired(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, 0)
	defer cancel()
	return ctx
}

// message has parts of 16 KiB, as grpc-go receives them.
func message(parts int) *rpc.Frame {
	f := &rpc.Frame{}
	for range parts {
		f.Data = append(f.Data, mem.Copy(make([]byte, 16<<10), rpc.Buffers()))
	}
	return f
}

func TestAnAnswerIsOwedUntilTheTransportIsThroughWithIt(t *testing.T) {
	for name, through := range map[string]func(c *Caller, f *rpc.Frame){
		"it is thrown away": func(_ *Caller, f *rpc.Frame) { f.Free() },
		"it is written": func(c *Caller, f *rpc.Frame) {
			reader := f.Data.Reader()
			f.Data.Free() // the reader has references of its own
			for range 8 {
				require.EqualValues(t, 8*16<<10, c.Answers.Held())
				_, err := reader.Discard(16 << 10)
				require.NoError(t, err)
			}
			require.NoError(t, reader.Close())
		},
		"the connection ends, then it is thrown away": func(c *Caller, f *rpc.Frame) {
			c.Close()
			require.Zero(t, c.Answers.Held())
			f.Free()
		},
		"the connection ends, and it is forgotten": func(c *Caller, _ *rpc.Frame) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			b := budgets()
			c := b.New(&Address{}, ended)
			f := message(8)
			room, err := c.Owe(context.Background(), unused, f.Data.Len())
			require.NoError(t, err)
			room.Attach(f)
			require.Equal(t, 8*16<<10, f.Data.Len(), "the bytes are the same")
			require.EqualValues(t, 8*16<<10, c.Answers.Held())
			through(c, f)
			require.Zero(t, c.Answers.Held())
			require.Zero(t, b.Answers.Used())
		})
	}
}

func TestAnswersBeyondTheShareAndTheBudgetAreRefused(t *testing.T) {
	b := budgets()
	c := b.New(&Address{}, ended)
	_, err := c.Owe(context.Background(), unused, 2<<20) // the share
	require.NoError(t, err)
	_, err = c.Owe(context.Background(), expired, 100<<10)
	require.Equal(t, fault.Exhausted, fault.KindOf(err), "its own earlier answer is in the way")
	for range 2 {
		_, err = b.New(&Address{}, ended).Owe(context.Background(), unused, 2<<20)
		require.NoError(t, err)
	}
	_, err = b.New(&Address{}, ended).Owe(context.Background(), expired, 2<<20)
	require.Equal(t, fault.Unavailable, fault.KindOf(err), "those of others are")
	_, err = b.New(&Address{}, ended).Owe(context.Background(), unused, 16<<10)
	require.NoError(t, err, "a short one has room")
	// What is refused holds nothing, and an end gives back everything.
	c.Close()
	room, err := b.New(&Address{}, ended).Owe(context.Background(), unused, 2<<20)
	require.NoError(t, err)
	room.Drop()
	room.Drop()
	require.EqualValues(t, 4<<20+16<<10, b.Answers.Used())
	room, err = c.Owe(context.Background(), unused, 1) // of a call that was on its way at the end
	require.NoError(t, err)
	room.Drop()
	require.EqualValues(t, 4<<20+16<<10, b.Answers.Used())
}

func TestWhoTakesNothingStalls(t *testing.T) {
	const patience = time.Minute
	owing := func(c *Caller) *rpc.Frame {
		f := message(4)
		room, err := c.Owe(context.Background(), unused, f.Data.Len())
		require.NoError(t, err)
		room.Attach(f)
		return f
	}
	synctest.Test(t, func(t *testing.T) {
		c := budgets().New(&Address{}, ended)
		stalls := func() bool { return c.Stalls(time.Now(), patience) }
		time.Sleep(time.Hour)
		require.False(t, stalls(), "it owes nothing")
		first := owing(c)
		time.Sleep(patience)
		require.False(t, stalls(), "at the limit")
		time.Sleep(time.Nanosecond)
		require.True(t, stalls(), "one past it")
		c.Wrote(leastProgress - 1)
		require.True(t, stalls(), "that was no part of an answer")
		c.Wrote(leastProgress)
		require.False(t, stalls())

		// It takes one answer after the other, and of the first nothing.
		second := owing(c)
		for range movingAnswer - 1 {
			second.Free()
			second = owing(c)
			require.False(t, stalls())
			time.Sleep(patience)
		}
		second.Free()
		require.True(t, stalls())
		first.Free()
		require.False(t, stalls())

		// A little of an answer at a time is no standstill.
		slow := owing(c)
		reader := slow.Data.Reader()
		slow.Data.Free()
		for range 4 {
			time.Sleep(patience)
			require.False(t, stalls())
			_, err := reader.Discard(16 << 10)
			require.NoError(t, err)
		}
		require.NoError(t, reader.Close())
	})
}

func TestWhoDoesLittleButGiveUpCallsIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := 0
		c := budgets().New(&Address{}, func() { closed++ })
		for range cancelledAtOnce {
			c.Cancelled()
		}
		require.Zero(t, closed, "at the limit")
		for range 3 * cancelledPerSecond { // at the rate that is allowed
			time.Sleep(time.Second / cancelledPerSecond)
			c.Cancelled()
		}
		require.Zero(t, closed)
		c.Cancelled()
		require.Equal(t, 1, closed, "one past it")
	})
}

func TestCallsAreBoundedFairly(t *testing.T) {
	b := budgets()
	begin := func(calls *Calls, c *Caller, times int) (begun int, err error) {
		for range times {
			if err = calls.Begin(c, Unary); err != nil {
				return begun, err
			}
			begun++
		}
		return begun, nil
	}
	t.Run("an ordinary client of a gateway with room", func(t *testing.T) {
		begun, err := begin(NewCalls(2048, 1, false), b.New(&Address{}, ended), 100)
		require.NoError(t, err)
		require.Equal(t, 100, begun)
	})
	t.Run("many connections of one address leave room", func(t *testing.T) {
		calls, address := NewCalls(2048, 1, false), &Address{}
		total := 0
		for range 2048 {
			begun, _ := begin(calls, b.New(address, ended), 100)
			total += begun
		}
		require.InDelta(t, 2048*3/4, total, 8)
		_, err := begin(calls, b.New(address, ended), 1)
		require.Equal(t, fault.Exhausted, fault.KindOf(err))
		begun, err := begin(calls, b.New(&Address{}, ended), few)
		require.NoError(t, err, "another address has its few")
		require.Equal(t, few, begun)
	})
	t.Run("one address has all where there is only one", func(t *testing.T) {
		calls, address := NewCalls(2048, 1, true), &Address{}
		for range 2048 / few {
			_, err := begin(calls, b.New(address, ended), few)
			require.NoError(t, err)
		}
		last := b.New(address, ended)
		_, err := begin(calls, last, 1)
		require.Equal(t, fault.Unavailable, fault.KindOf(err), "one past the limit")
		require.NoError(t, calls.Begin(last, Stream), "streams have a bound of their own")
		calls.End(last, Stream)
	})
	t.Run("probes have a bound of their own", func(t *testing.T) {
		calls, address := NewCalls(1, 1, false), &Address{}
		begun := 0
		for range maxHealth {
			if calls.Begin(b.New(address, ended), KindOf("/grpc.health.v1.Health/Watch", true)) == nil {
				begun++
			}
		}
		require.InDelta(t, maxHealth*3/4, begun, 8)
		require.NoError(t, calls.Begin(b.New(&Address{}, ended), Health), "a probe from elsewhere is served")
		require.NoError(t, calls.Begin(b.New(address, ended), Unary))
	})
	t.Run("what ends makes room", func(t *testing.T) {
		calls := NewCalls(1, 1, true)
		c := b.New(&Address{}, ended)
		for range 10 {
			require.NoError(t, calls.Begin(c, Unary))
			require.Error(t, calls.Begin(c, Unary))
			calls.End(c, Unary)
		}
	})
}
