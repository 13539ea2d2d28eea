package reader_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/rpc/rpctest"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

const mib = 1 << 20

// heap is the bytes in use, with nothing that can be collected.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// watchHeap returns a function that ends the watch and says how far the heap rose.
func watchHeap(t *testing.T) func() int64 {
	t.Helper()
	heap() // what pools keep is collected by the second collection only
	before, peak := heap(), int64(0)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				peak = max(peak, heap()-before)
			}
		}
	}()
	return sync.OnceValue(func() int64 {
		close(stop)
		<-stopped
		return peak
	})
}

// crowded is a reader with room for two long pages, and a topic whose page is one.
func crowded(t *testing.T, answerTimeout time.Duration) role {
	t.Helper()
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	for i := range 24 {
		put(t, conn, group(0), message(i, mib-64))
	}
	put(t, conn, group(1), message(0, 100))
	cfg := configuration(t, db.PrimaryURL)
	cfg.ResponseBytes, cfg.RPC.AnswerTimeout = 64*mib, answerTimeout
	return start(t, cfg)
}

func longPage(t *testing.T) []byte {
	t.Helper()
	request, err := proto.Marshal(&backendv1.QueryRequest{Queries: queries(1)})
	require.NoError(t, err)
	return request
}

func (r role) used() int64 { return r.made.Responses().Used() }

func (r role) awaitBudget(t *testing.T, is func(used int64) bool) {
	t.Helper()
	eventually(t, "the budget of responses", func() bool { return is(r.used()) })
}

const queryMethod = "/" + "xmtp.backend.v1.QueryService/Query"

// Invariant I9: calls whose answers nobody takes hold no more than the budget, and
// short pages do not wait for them.
func TestPagesThatNobodyTakesAreBounded(t *testing.T) {
	r := crowded(t, time.Hour)
	rose := watchHeap(t)
	m := rpctest.Connect(t, r.conn.Target())
	for range 100 {
		m.Call(queryMethod, longPage(t))
	}
	r.awaitBudget(t, func(used int64) bool { return used > 40*mib })
	for range 100 {
		answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2)[1:]})
		require.NoError(t, err)
		require.Len(t, answer.GetEnvelopes(), 1)
	}
	require.LessOrEqual(t, r.used(), int64(64*mib))
	peak := rose()
	t.Logf("the heap rose by %d MiB", peak/mib)
	require.Less(t, peak, int64(128*mib)) // 2.4 GiB without a budget
	require.NoError(t, m.Conn.Close())
	r.awaitBudget(t, func(used int64) bool { return used == 0 })
}

// They do not stay: who waits behind them is served.
func TestPagesThatNobodyTakesEnd(t *testing.T) {
	r := crowded(t, time.Second)
	m := rpctest.Connect(t, r.conn.Target())
	for range 10 {
		m.Call(queryMethod, longPage(t))
	}
	r.awaitBudget(t, func(used int64) bool { return used > 40*mib })
	require.Eventually(t, func() bool { return r.raw(t, "QueryService/Query", longPage(t)) == nil }, time.Minute, time.Millisecond)
	m.AwaitEnd()
	r.awaitBudget(t, func(used int64) bool { return used == 0 })
}

// Clients who do take their pages wait for each other and get all of them.
func TestLongPagesForManyWaitTheirTurn(t *testing.T) {
	r := crowded(t, time.Minute)
	rose := watchHeap(t)
	var clients errgroup.Group
	for range 60 {
		clients.Go(func() error { return r.raw(t, "QueryService/Query", longPage(t)) })
	}
	require.NoError(t, clients.Wait())
	peak := rose()
	t.Logf("the heap rose by %d MiB", peak/mib)
	require.Less(t, peak, int64(256*mib)) // with what the clients hold; 1.4 GiB without a budget
	r.awaitBudget(t, func(used int64) bool { return used == 0 })
}

// Long requests wait for each other, too, and short ones do not wait for them.
func TestLongRequestsAreBounded(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	cfg := configuration(t, db.PrimaryURL)
	cfg.RequestBytes = 32 * mib
	r := start(t, cfg)
	long := padded(t, &backendv1.QueryRequest{}, 24*mib) // all calls share it
	// One that does not arrive in full holds room for itself only.
	stuck := rpctest.Connect(t, r.conn.Target())
	stuck.Begin(queryMethod, 2*mib, long[:mib/8])
	eventually(t, "a part of a request", func() bool { return r.made.Requests().Used() >= 2*mib-64<<10 })
	rose := watchHeap(t)
	var clients errgroup.Group
	for range 30 {
		clients.Go(func() error { return r.raw(t, "QueryService/Query", long) })
		clients.Go(func() error {
			_, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2)})
			return err
		})
	}
	require.NoError(t, clients.Wait())
	peak := rose()
	t.Logf("the heap rose by %d MiB", peak/mib)
	require.Less(t, peak, int64(192*mib))
	require.NoError(t, stuck.Conn.Close())
	eventually(t, "all to be given back", func() bool { return r.made.Requests().Used() == 0 })
}

// A page that is longer than what could be had without waiting is the same page.
func TestAPageIsTheSameInAnyRoom(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	for i := range 300 {
		put(t, conn, group(i%3), message(i, i*i/32)) // 0.3 MiB in all
	}
	roomy := start(t, configuration(t, db.PrimaryURL))
	cfg := configuration(t, db.PrimaryURL)
	cfg.ResponseBytes = 32 * mib
	full := start(t, cfg)
	// Of the 28 MiB for long pages so little is left that no page gets room on spec.
	held := full.made.Responses().Holder()
	require.True(t, held.TryTake(27*mib))
	defer held.Give(27 * mib)
	for _, limit := range []uint32{1, 2, 50, 100, 299, 300, 1000} {
		for n := 1; n <= 3; n++ {
			request := &backendv1.QueryRequest{Queries: queries(n), Limit: limit}
			want, err := roomy.Query(t.Context(), request)
			require.NoError(t, err)
			got, err := full.Query(t.Context(), request)
			require.NoError(t, err)
			requireSamePage(t, want, got, n <= int(limit))
		}
	}
	for _, whole := range []bool{false, true} {
		request := &backendv1.QueryNewestRequest{Topics: topics(3), IncludeFullEnvelope: whole}
		want, err := roomy.QueryNewest(t.Context(), request)
		require.NoError(t, err)
		got, err := full.QueryNewest(t.Context(), request)
		require.NoError(t, err)
		require.True(t, proto.Equal(want, got))
	}
}

// requireSamePage compares pages, whose topics may come in any order when there are
// more of them than rows.
func requireSamePage(t *testing.T, want, got *backendv1.QueryResponse, ordered bool) {
	t.Helper()
	require.Equal(t, want.GetContinuation().GetHasMore(), got.GetContinuation().GetHasMore())
	require.Len(t, got.GetEnvelopes(), len(want.GetEnvelopes()))
	if ordered {
		require.True(t, proto.Equal(want, got))
	}
}
