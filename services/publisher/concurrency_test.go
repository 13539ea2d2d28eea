package publisher_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// TestEveryReadIsAPrefix runs 64 writers on few topics through two publishers,
// while readers poll the primary and a replica (I1 to I4).
//
// Proves API-010, API-011, API-014, API-066, I1, I2, I3, I4.
func TestEveryReadIsAPrefix(t *testing.T) {
	db := pgtest.Migrated(t, migrate)
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	roles := []*role{startOn(t, db.PrimaryURL, bus.URL()), startOn(t, db.PrimaryURL, bus.URL())}
	h := &history{}
	groups := []testkit.Group{testkit.New(30).Group(), testkit.New(31).Group(), testkit.New(32).Group()}
	logs := []string{identityLog}
	for _, g := range groups {
		logs = append(logs, string(g.Topic()))
	}
	reading, stopReading := context.WithCancel(t.Context())
	var readers, writers sync.WaitGroup
	for _, url := range []string{db.PrimaryURL, db.ReplicaURL} {
		pool, err := pgxpool.New(t.Context(), url)
		require.NoError(t, err)
		defer pool.Close()
		for range 2 {
			readers.Go(func() { poll(reading, pool, logs, h) })
		}
	}
	failures := make([]error, 64)
	for i := range failures {
		writers.Go(func() {
			failures[i] = write(roles[i%2], testkit.New(uint64(100+i)), groups, h)
		})
	}
	writers.Wait()
	stopReading()
	readers.Wait()
	for _, err := range failures {
		require.NoError(t, err)
	}
	h.final = map[string][]entry{}
	for _, a := range h.acknowledged {
		h.final[a.topic] = nil
	}
	h.final[identityLog] = nil
	for log := range h.final {
		h.final[log], err = readLog(t.Context(), roles[0].db, log)
		require.NoError(t, err)
	}
	require.NoError(t, h.check())
	require.Greater(t, len(h.reads), 20)
	require.Greater(t, len(h.final[identityLog]), 64)
}

// poll reads the logs in turns.
func poll(ctx context.Context, pool *pgxpool.Pool, logs []string, h *history) {
	for ctx.Err() == nil {
		for _, log := range logs {
			entries, err := readLog(ctx, pool, log)
			if err == nil {
				h.saw(read{log, entries})
			}
		}
	}
}

// write publishes messages on shared groups, some in one request, and updates of
// inboxes of its own.
func write(to *role, kit *testkit.Kit, groups []testkit.Group, h *history) error {
	r := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	for n := range 20 {
		var envelopes []*backendv1.ClientEnvelope
		for range 1 + r.IntN(3) {
			envelopes = append(envelopes, kit.GroupMessage(groups[r.IntN(len(groups))], 20))
		}
		if n%5 == 0 {
			envelopes = append(envelopes, kit.Client().Registration(time.Now()))
		}
		begun := time.Now()
		metas, err := to.persist(envelopes...)
		ended := time.Now()
		if err != nil {
			return fmt.Errorf("publish %d: %w", n, err)
		}
		for _, meta := range metas {
			h.acknowledge(acknowledged{entry{
				string(meta.GetTopic().GetTopic()), int64(meta.GetCursor().GetSequenceId()), string(meta.GetMessageHash().GetSha256()),
			}, begun, ended})
		}
	}
	return nil
}

// TestManyTopicsAtOnceOnADefaultServer is what a lock table of default size has
// no room for, and what would deadlock if locks had no order.
func TestManyTopicsAtOnceOnADefaultServer(t *testing.T) {
	r := start(t)
	second := startOn(t, r.primary, r.nats)
	const sharedTopics = 200
	shared := make([]testkit.Group, sharedTopics)
	kit := testkit.New(33)
	for i := range shared {
		shared[i] = kit.Group()
	}
	for _, c := range []struct {
		name            string
		callers, topics int
		group           func(caller, i int) testkit.Group
	}{
		{"each its own", 50, 1000, func(caller, i int) testkit.Group { return testkit.Group{0: byte(caller), 1: byte(i), 2: byte(i >> 8)} }},
		{"the same in opposite orders", 20, sharedTopics, func(caller, i int) testkit.Group {
			if caller%2 == 0 {
				return shared[i]
			}
			return shared[sharedTopics-1-i]
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := r.rows()
			failures := make([]error, c.callers)
			var wait sync.WaitGroup
			for caller := range c.callers {
				to := r
				if caller%3 == 0 {
					to = second
				}
				kit := testkit.New(uint64(1000 + caller))
				envelopes := make([]*backendv1.ClientEnvelope, c.topics)
				for i := range envelopes {
					envelopes[i] = kit.GroupMessage(c.group(caller, i), 1)
				}
				wait.Go(func() {
					_, failures[caller] = to.persist(envelopes...)
				})
			}
			wait.Wait()
			for _, err := range failures {
				require.NoError(t, err)
			}
			require.Equal(t, c.callers*c.topics, r.rows()-before)
		})
	}
}
