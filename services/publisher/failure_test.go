package publisher_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

// hold locks the row of a topic, as another publisher that stalls would, until
// the test releases it.
func (r *role) hold(group testkit.Group) (release func()) {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.primary)
	require.NoError(r.t, err)
	tx, err := conn.Begin(r.t.Context())
	require.NoError(r.t, err)
	_, err = tx.Exec(r.t.Context(), "SELECT FROM topic_heads WHERE topic = $1 FOR UPDATE", []byte(group.Topic()))
	require.NoError(r.t, err)
	var once sync.Once
	release = func() {
		once.Do(func() {
			require.NoError(r.t, tx.Rollback(context.Background()))
			require.NoError(r.t, conn.Close(context.Background()))
		})
	}
	r.t.Cleanup(release)
	return release
}

// waiting is how many sessions of publishers wait for a lock.
func (r *role) waiting() (n int) {
	r.t.Helper()
	require.NoError(r.t, r.db.QueryRow(r.t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'xmtp-backend' AND wait_event_type = 'Lock'`).Scan(&n))
	return n
}

func TestAHeldTopicFailsAloneAndItsNeighboursDoNot(t *testing.T) {
	r := start(t)
	kit := testkit.New(50)
	held := kit.Group()
	r.publish(kit.GroupMessage(held, 1))
	release := r.hold(held)
	blocked := kit.GroupMessage(held, 1)
	refused := make(chan error, 1)
	go func() {
		_, err := r.try(blocked)
		refused <- err
	}()
	var neighbours sync.WaitGroup
	failures := make([]error, 40)
	for i := range failures {
		message := kit.GroupMessage(kit.Group(), 1)
		neighbours.Go(func() { _, failures[i] = r.try(message) })
	}
	neighbours.Wait()
	for _, err := range failures {
		require.NoError(t, err)
	}
	require.Equal(t, codes.Unavailable, status.Code(receive(t, refused, "the answer of the held one")))
	release()
	r.publish(blocked)
	require.Equal(t, 2+len(failures), r.rows())
}

func TestACancelledCallLeavesNothingBehind(t *testing.T) {
	r := start(t)
	kit := testkit.New(51)
	group := kit.Group()
	r.publish(kit.GroupMessage(group, 1))
	release := r.hold(group)
	message := kit.GroupMessage(group, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.client.Publish(ctx, &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{message}})
		ended <- err
	}()
	require.Eventually(t, func() bool { return r.waiting() > 0 }, within, 5*time.Millisecond, "it waits for the lock")
	cancel()
	require.Equal(t, codes.Canceled, status.Code(receive(t, ended, "the cancelled call")))
	require.Eventually(t, func() bool { return r.waiting() == 0 }, within, 5*time.Millisecond, "its transaction ends")
	release()
	metas := r.publish(message)
	require.True(t, proto.Equal(metas[0], r.publish(message)[0]))
	var open int
	require.NoError(t, r.db.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'xmtp-backend' AND state LIKE 'idle in transaction%'`).Scan(&open))
	require.Zero(t, open)
}

func TestAnIdentityLockHeldElsewhereEndsInTime(t *testing.T) {
	r := start(t)
	kit := testkit.New(52)
	conn, err := pgx.Connect(t.Context(), r.primary)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), "SELECT pg_advisory_lock(8245931098215104001)")
	require.NoError(t, err)
	registration := kit.Client().Registration(time.Now())
	refused := make(chan error, 1)
	go func() {
		_, err := r.try(registration)
		refused <- err
	}()
	require.Eventually(t, func() bool { return r.waiting() > 0 }, within, 5*time.Millisecond, "it waits for the lock")
	r.publish(kit.GroupMessage(kit.Group(), 1)) // messages go on
	require.Equal(t, codes.Unavailable, status.Code(receive(t, refused, "the answer")))
	_, err = conn.Exec(t.Context(), "SELECT pg_advisory_unlock_all()")
	require.NoError(t, err)
	r.publish(registration)
}

// A database without free connections is a clear answer, not a hang.
func TestWithoutConnectionsThePublishIsUnavailable(t *testing.T) {
	server := pgtest.OwnPrimary(t, map[string]string{"max_connections": "10", "superuser_reserved_connections": "0"})
	require.NoError(t, migrate(t.Context(), server.URL("postgres")))
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	r := startOn(t, server.URL("postgres"), bus.URL(), func(c *publisher.Config, _ *publisher.Deps) { c.Migrate = false })
	var taken []*pgx.Conn
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
		if err == nil {
			taken = append(taken, conn)
			return false
		}
		// Connections that the role already has are ended, and taken too.
		if len(taken) > 0 {
			_, _ = taken[0].Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'xmtp-backend'")
		}
		return len(taken) == 10
	}, within, 5*time.Millisecond, "all connections are taken")
	message := testkit.New(53).GroupMessage(testkit.Group{1}, 1)
	_, err = r.try(message)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Contains(t, status.Convert(err).Message(), "database")
	for _, conn := range taken {
		require.NoError(t, conn.Close(t.Context()))
	}
	r.publish(message)
}

// Nor is one that takes connections and says nothing, as behind a broken network:
// whether a request is the first or waits behind others.
func TestASilentDatabaseIsUnavailable(t *testing.T) {
	silent, err := freeport.Listen()
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	r := startOn(t, "postgres://postgres@"+silent.Addr().String()+"/none?sslmode=disable", bus.URL(), func(c *publisher.Config, _ *publisher.Deps) {
		c.Migrate, c.Pool.AcquireTimeout, c.Pool.ConnectTimeout = false, 300*time.Millisecond, 3*time.Second // far from the limit of a request
	})
	kit := testkit.New(58)
	var callers sync.WaitGroup
	for range 40 {
		message := kit.GroupMessage(kit.Group(), 1)
		callers.Go(func() {
			_, err := r.try(message)
			assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		})
	}
	callers.Wait()
}

// A publisher that is not ready from its start says why.
func TestTheReasonForNotBeingReadyIsLogged(t *testing.T) {
	log := logtest.New()
	startOn(t, "postgres://somebody:hunter2@127.0.0.1:1/none", "nats://127.0.0.1:1", func(_ *publisher.Config, d *publisher.Deps) {
		d.Logger = log.Logger
	})
	require.Eventually(t, func() bool { return strings.Contains(log.String(), `"level":"WARN","msg":"not ready"`) }, within, 5*time.Millisecond)
	require.Contains(t, log.String(), "could not be brought up to date")
	require.NotContains(t, log.String(), "hunter2")
}

// As many topics as there are shared places are held by somebody else: their
// requests give the places up before they wait for long.
func TestHeldTopicsLeaveThePlacesToOthers(t *testing.T) {
	const places, patience = 2, 2500 * time.Millisecond
	r := start(t, func(c *publisher.Config, _ *publisher.Deps) { c.Group.MaxInFlight = places })
	kit := testkit.New(59)
	// The machine may stand still for a while: one of three times is enough.
	for attempt := range 3 {
		refused := make(chan error, places)
		var releases []func()
		var messages []*backendv1.ClientEnvelope
		for range places {
			held := kit.Group()
			r.publish(kit.GroupMessage(held, 1))
			releases = append(releases, r.hold(held))
			messages = append(messages, kit.GroupMessage(held, 1))
		}
		for _, message := range messages {
			go func() {
				_, err := r.try(message)
				refused <- err
			}()
		}
		// One that waits alone for long gives up before the other begins.
		begun, together := time.Now(), false
		for !together && time.Since(begun) < time.Second {
			together = r.waiting() == places
		}
		begun = time.Now()
		for range 20 {
			r.publish(kit.GroupMessage(kit.Group(), 1))
		}
		took := time.Since(begun)
		for _, release := range releases {
			release()
		}
		inTime := true
		for range places {
			err := receive(t, refused, "the answer of a held one")
			require.Contains(t, []codes.Code{codes.OK, codes.Unavailable, codes.DeadlineExceeded}, status.Code(err), "%v", err)
			inTime = inTime && status.Code(err) != codes.DeadlineExceeded
		}
		if together && inTime && took < patience {
			return
		}
		t.Logf("attempt %d: both waited at a time: %v, were answered in time: %v, others took %v", attempt, together, inTime, took)
	}
	t.Fatalf("others waited longer than %v, or the held ones were not as wanted, each time", patience)
}

// A publish is wholly there or not at all, whatever is cut or killed while it
// runs, and the same bytes sent again have the same metadata.
//
// Proves API-037.
func TestKillsWhilePublishing(t *testing.T) {
	server := pgtest.OwnPrimary(t, nil)
	require.NoError(t, migrate(t.Context(), server.URL("postgres")))
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	r := startOn(t, server.URL("postgres"), bus.URL())
	kit := testkit.New(54)
	r.publish(kit.GroupMessage(kit.Group(), 1))
	for _, c := range []struct {
		name string
		kill func()
	}{
		{"connections cut", func() {
			for range 10 {
				_, err := r.db.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'xmtp-backend'")
				require.NoError(t, err)
				time.Sleep(3 * time.Millisecond) // between the steps of different transactions
			}
		}},
		{"database restarted", func() { require.NoError(t, server.Restart(t.Context())) }},
		{"database killed", func() {
			require.NoError(t, server.Kill())
			require.NoError(t, server.Start(t.Context()))
		}},
		{"database crashed", func() {
			require.NoError(t, server.Stop(pglocal.Immediate))
			require.NoError(t, server.Start(t.Context()))
		}},
	} {
		t.Run(c.name, func(t *testing.T) { killWhilePublishing(t, r, kit, c.kill) })
	}
}

func killWhilePublishing(t *testing.T, r *role, kit *testkit.Kit, kill func()) {
	const callers, size = 16, 5
	type attempt struct {
		envelopes []*backendv1.ClientEnvelope
		metas     []*backendv1.EnvelopeMeta // nil when it failed
	}
	var mu sync.Mutex
	var attempts []*attempt
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for range callers {
		writers.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				a := &attempt{}
				for range size {
					a.envelopes = append(a.envelopes, kit.GroupMessage(kit.Group(), 10))
				}
				attempts = append(attempts, a)
				mu.Unlock()
				a.metas, _ = r.try(a.envelopes...)
			}
		})
	}
	time.Sleep(20 * time.Millisecond) // not awaited by anything: the kill may come at any step
	kill()
	cancel()
	writers.Wait()
	failed := 0
	for _, a := range attempts {
		stored := 0
		for _, e := range a.envelopes {
			var there bool
			group := testkit.Group(e.GetGroupMessage().GetData()[5:21])
			require.Eventually(t, func() bool {
				return r.db.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM envelopes WHERE topic = $1)", []byte(group.Topic())).Scan(&there) == nil
			}, within, 10*time.Millisecond, "the database answers")
			if there {
				stored++
			}
		}
		require.Contains(t, []int{0, size}, stored, "a publish is stored in part")
		again := r.publish(a.envelopes...)
		if a.metas == nil {
			failed++
			continue
		}
		require.Equal(t, size, stored, "an acknowledged publish is gone")
		for i := range again {
			require.True(t, proto.Equal(a.metas[i], again[i]))
		}
	}
	t.Logf("%d of %d publishes failed", failed, len(attempts))
}
