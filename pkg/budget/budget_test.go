package budget_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
)

const (
	mib   = int64(1 << 20)
	small = int64(64 << 10)
)

// ask takes bytes on a goroutine; the channel has the outcome once there is one.
func ask(ctx context.Context, h *budget.Holder, bytes int64) <-chan error {
	outcome := make(chan error, 1)
	go func() { outcome <- h.Take(ctx, bytes) }()
	synctest.Wait()
	return outcome
}

func isOpen(outcome <-chan error) bool { return len(outcome) == 0 }

func TestAShareIsABound(t *testing.T) {
	b := budget.New(64*mib, 16*mib)
	h := b.Holder()
	require.Equal(t, 16*mib, b.Share())
	require.ErrorIs(t, h.Take(t.Context(), 16*mib+1), budget.ErrTooLarge)
	require.Zero(t, b.Used())
	require.NoError(t, h.Take(t.Context(), 16*mib))
	require.False(t, h.TryTake(1))
	require.True(t, b.Holder().TryTake(16*mib))
	require.Equal(t, 32*mib, b.Used())
	h.Give(16 * mib)
	require.True(t, h.TryTake(1))
}

func TestAShareLeavesTheReserve(t *testing.T) {
	require.Equal(t, 56*mib, budget.New(64*mib, 0).Share())
	require.Equal(t, 56*mib, budget.New(64*mib, 64*mib).Share())
}

func TestWhoIsAtItsShareHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(64*mib, 16*mib)
		greedy := b.Holder()
		require.True(t, greedy.TryTake(16*mib))
		waits := ask(t.Context(), greedy, mib)
		require.True(t, isOpen(waits))
		require.NoError(t, b.Holder().Take(t.Context(), 16*mib))
		require.NoError(t, b.Holder().Take(t.Context(), small))
		greedy.Give(16 * mib)
		require.NoError(t, <-waits)
	})
}

func TestLargeAmountsAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(64*mib, 0)
		first := b.Holder()
		require.True(t, first.TryTake(50*mib))
		larger := ask(t.Context(), b.Holder(), 20*mib)
		later := ask(t.Context(), b.Holder(), mib)
		require.True(t, isOpen(larger))
		require.True(t, isOpen(later), "an amount that would fit came before a larger one that waited longer")
		first.Give(50 * mib)
		require.NoError(t, <-larger)
		require.NoError(t, <-later)
	})
}

func TestSmallAmountsDoNotWaitBehindLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(64*mib, 0)
		require.True(t, b.Holder().TryTake(56*mib))
		waits := ask(t.Context(), b.Holder(), 20*mib)
		for range 8 * mib / small { // the reserve
			require.NoError(t, b.Holder().Take(t.Context(), small))
		}
		require.False(t, b.Holder().TryTake(1), "small amounts took more than the reserve while a large one waited")
		require.True(t, isOpen(waits))
	})
}

func TestSmallAmountsDoNotStarveLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(64*mib, 0)
		holder := b.Holder()
		for range 64 * mib / small {
			require.True(t, holder.TryTake(small) || b.Holder().TryTake(small))
		}
		waits := ask(t.Context(), b.Holder(), 20*mib)
		// Each small amount that ends is followed by another at once.
		steps := int64(0)
		for isOpen(waits) {
			holder.Give(small)
			holder.TryTake(small)
			synctest.Wait()
			steps++
			require.Less(t, steps, 2*56*mib/small, "the large amount is never served")
		}
		require.NoError(t, <-waits)
	})
}

func TestWhoGivesUpTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(64*mib, 56*mib)
		holder, own := b.Holder(), b.Holder()
		require.True(t, holder.TryTake(56*mib))
		ctx, cancel := context.WithCancel(t.Context())
		inLine, beyondShare := ask(ctx, own, 40*mib), ask(ctx, holder, mib)
		behind := ask(t.Context(), b.Holder(), 10*mib)
		cancel()
		require.ErrorIs(t, <-inLine, context.Canceled)
		require.ErrorIs(t, <-beyondShare, context.Canceled)
		require.Zero(t, own.Held())
		holder.Give(56 * mib)
		require.NoError(t, <-behind)
		require.Equal(t, 10*mib, b.Used())
	})
}

func TestWhatIsThereIsCountedBeyondTheBounds(t *testing.T) {
	b := budget.New(64*mib, 16*mib)
	h := b.Holder()
	h.Charge(100 * mib)
	require.Equal(t, 100*mib, b.Used())
	require.False(t, b.Holder().TryTake(mib))
	require.True(t, b.Holder().TryTake(small), "the reserve is for small amounts whatever large ones do")
	h.Give(100 * mib)
	require.True(t, b.Holder().TryTake(mib))
}

// Whatever is asked for and given back in whatever order: the bounds hold, no
// amount is granted that was given up, and once all is given back all waiters are
// served.
//
// Proves I9.
func TestTheBoundsHoldUnderAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			b := budget.New(4096, 1024)
			holders := []*budget.Holder{b.Holder(), b.Holder(), b.Holder(), b.Holder(), b.Holder(), b.Holder()}
			type grant struct {
				holder  *budget.Holder
				bytes   int64
				outcome <-chan error
				cancel  context.CancelFunc
			}
			var waiting, granted []grant
			settle := func() {
				synctest.Wait()
				kept := waiting[:0]
				for _, g := range waiting {
					if isOpen(g.outcome) {
						kept = append(kept, g)
					} else if <-g.outcome == nil {
						granted = append(granted, g)
					}
				}
				waiting = kept
				sum := int64(0)
				of := map[*budget.Holder]int64{}
				for _, g := range granted {
					sum += g.bytes
					of[g.holder] += g.bytes
				}
				require.Equal(t, sum, b.Used())
				require.LessOrEqual(t, sum, b.Total())
				for h, bytes := range of {
					require.LessOrEqual(t, bytes, b.Share())
					require.GreaterOrEqual(t, h.Held(), bytes)
				}
			}
			giveBack := func(i int) {
				g := granted[i]
				granted = append(granted[:i], granted[i+1:]...)
				g.holder.Give(g.bytes)
				settle()
			}
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				switch rapid.IntRange(0, 3).Draw(rt, "what") {
				case 0, 1:
					ctx, cancel := context.WithCancel(t.Context())
					g := grant{
						holder: rapid.SampledFrom(holders).Draw(rt, "holder"), cancel: cancel,
						bytes: rapid.OneOf(rapid.Int64Range(1, 16), rapid.Int64Range(17, 1024)).Draw(rt, "bytes"),
					}
					g.outcome = ask(ctx, g.holder, g.bytes)
					waiting = append(waiting, g)
				case 2:
					if len(waiting) > 0 {
						waiting[rapid.IntRange(0, len(waiting)-1).Draw(rt, "gives up")].cancel()
					}
				case 3:
					if len(granted) > 0 {
						giveBack(rapid.IntRange(0, len(granted)-1).Draw(rt, "gives back"))
						continue
					}
				}
				settle()
			}
			for len(granted) > 0 {
				giveBack(0)
			}
			require.Empty(t, waiting)
			require.Zero(t, b.Used())
			for _, h := range holders {
				require.Zero(t, h.Held())
			}
		})
	})
}

func BenchmarkTakeAndGive(b *testing.B) {
	of := budget.New(512*mib, 64*mib)
	b.RunParallel(func(pb *testing.PB) {
		h := of.Holder()
		for pb.Next() {
			if h.TryTake(1024) {
				h.Give(1024)
			}
		}
	})
}
