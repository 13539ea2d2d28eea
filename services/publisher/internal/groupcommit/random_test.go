package groupcommit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/groupcommit"
)

// TestRandomTrafficKeepsEveryRule lets many callers come, fail and leave, and
// checks that nothing is lost, nothing is committed twice, and no two
// transactions share a topic.
func TestRandomTrafficKeepsEveryRule(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomTraffic(t, seed) })
		})
	}
}

func randomTraffic(t *testing.T, seed uint64) {
	cfg := config()
	cfg.MaxInFlight, cfg.MaxRows = 1+int(seed%3), 8
	errLocked := errors.New("locked")
	cfg.LostItsLocks = func(err error) bool { return errors.Is(err, errLocked) }
	var mu sync.Mutex
	busy, commits := map[topic.Topic]int{}, map[string]int{}
	var groups, identities atomic.Int64
	commit := func(_ context.Context, group []*work, _ bool) error {
		id := int(groups.Add(1))
		r := rand.New(rand.NewPCG(seed, uint64(id)))
		if group[0].identity {
			require.EqualValues(t, 1, identities.Add(1))
			defer identities.Add(-1)
		}
		mu.Lock()
		for _, w := range group {
			require.Equal(t, group[0].identity, w.identity)
			for _, name := range w.topics {
				owner, taken := busy[name]
				require.True(t, !taken || owner == id, "topic shared by two transactions")
				busy[name] = id
			}
		}
		mu.Unlock()
		time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		for _, w := range group {
			for _, name := range w.topics {
				delete(busy, name)
			}
		}
		if r.IntN(4) == 0 {
			if r.IntN(2) == 0 {
				return errLocked
			}
			return errors.New("failed")
		}
		for _, w := range group {
			commits[w.name]++
		}
		return nil
	}
	committer := groupcommit.New(cfg, commit)
	outcomes := make([]error, 300)
	var callers sync.WaitGroup
	for i := range outcomes {
		callers.Go(func() {
			r := rand.New(rand.NewPCG(seed+1000, uint64(i)))
			time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
			w := &work{name: fmt.Sprint(i), rows: 1 + r.IntN(10), bytes: r.IntN(60), identity: r.IntN(5) == 0}
			for n := range 1 + r.IntN(3) {
				w.topics = append(w.topics, topic.Topic(fmt.Sprint(n*10+r.IntN(10))))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+r.IntN(20_000))*time.Millisecond)
			defer cancel()
			deadline, _ := ctx.Deadline()
			outcomes[i] = committer.Do(ctx, w, deadline)
		})
	}
	callers.Wait()
	committer.Close(t.Context())
	successes := 0
	for i, err := range outcomes {
		if err == nil {
			successes++
			require.Equal(t, 1, commits[fmt.Sprint(i)], "success means committed, once")
		}
		require.LessOrEqual(t, commits[fmt.Sprint(i)], 1)
	}
	require.Greater(t, successes, 100)
	require.Empty(t, busy)
}
