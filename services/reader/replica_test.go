package reader_test

import (
	"context"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

var fast = map[string]string{"fsync": "off"}

func replicaServer(t testing.TB) *pglocal.Server {
	t.Helper()
	_, replica := pgtest.Cluster(t)
	return replica
}

func (r role) newest(ctx context.Context, name topic.Topic) (uint64, error) {
	answer, err := r.QueryNewest(ctx, &backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{{Topic: []byte(name)}}})
	if err != nil || len(answer.GetResults()) == 0 {
		return 0, err
	}
	return answer.GetResults()[0].GetMeta().GetCursor().GetSequenceId(), nil
}

// Invariant I2: a replica that lags shows an earlier moment, never a gap.
//
// Proves API-011, API-016, API-083, I2.
func TestALaggingReplicaShowsAPrefix(t *testing.T) {
	primary, replica := pgtest.OwnCluster(t, fast)
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	conn, standby := connect(t, primary.URL("postgres")), connect(t, replica.URL("postgres"))
	before := put(t, conn, group(1), message(1, 10))
	pgtest.WaitReplayed(t, primary, replica)
	r := start(t, configuration(t, primary.URL("postgres"), replica.URL("postgres")))
	execute(t, standby, `SELECT pg_wal_replay_pause()`)
	eventually(t, "replay to pause", func() bool {
		var state string
		require.NoError(t, standby.QueryRow(t.Context(), `SELECT pg_get_wal_replay_pause_state()`).Scan(&state))
		return state == "paused"
	})
	after := put(t, conn, group(1), message(2, 10))
	put(t, conn, group(2), message(3, 10))
	associate(t, conn, 1, address, 1, 10, 0)

	seen, err := r.newest(t.Context(), group(1))
	require.NoError(t, err)
	require.Equal(t, before, seen)
	seen, err = r.newest(t.Context(), group(2))
	require.NoError(t, err)
	require.Zero(t, seen)
	inboxes, err := r.GetInboxIds(t.Context(), lookup())
	require.NoError(t, err)
	require.Nil(t, inboxes.GetResponses()[0].InboxId)
	// Query is of the primary.
	answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2)})
	require.NoError(t, err)
	require.Equal(t, []uint64{before, after}, ids(answer.GetEnvelopes()))

	execute(t, standby, `SELECT pg_wal_replay_resume()`)
	pgtest.WaitReplayed(t, primary, replica)
	seen, err = r.newest(t.Context(), group(1))
	require.NoError(t, err)
	require.Equal(t, after, seen)
	inboxes, err = r.GetInboxIds(t.Context(), lookup())
	require.NoError(t, err)
	require.Equal(t, inboxID(1), inboxes.GetResponses()[0].GetInboxId())
}

func lookup() *backendv1.GetInboxIdsRequest {
	return &backendv1.GetInboxIdsRequest{Requests: []*backendv1.GetInboxIdsRequest_Request{{Identifier: address}}}
}

// The replicas of a list serve in order: the next when one is away, the first
// again when it is back. One that hangs is given up in bounded time.
//
// Proves API-018.
func TestReplicasFailOverInOrder(t *testing.T) {
	primary, first := pgtest.OwnCluster(t, fast)
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	conn := connect(t, primary.URL("postgres"))
	head := put(t, conn, group(1), message(1, 10))
	pgtest.WaitReplayed(t, primary, first)
	second := pgtest.OwnReplica(t, primary, fast)
	cfg := configuration(t, primary.URL("postgres"), first.URL("postgres"), second.URL("postgres"))
	cfg.Database.ProbeTimeout, cfg.PrimaryFallback = 2*time.Second, 0
	r := start(t, cfg)
	r.awaitServing(t, true)

	// Only the first lags, so that an answer tells who gave it.
	standby := connect(t, first.URL("postgres"))
	execute(t, standby, `SELECT pg_wal_replay_pause()`)
	newer := put(t, conn, group(1), message(2, 10))
	pgtest.WaitReplayed(t, primary, second)
	from := func(want uint64) func() bool {
		return func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			seen, err := r.newest(ctx, group(1))
			return err == nil && seen == want
		}
	}
	// One probe that took too long makes it the second's turn for a moment.
	eventually(t, "the first to serve while it is up", from(head))
	require.NoError(t, first.Pause())
	begun := time.Now()
	eventually(t, "the second to serve", from(newer))
	require.Less(t, time.Since(begun), 15*time.Second)
	require.NoError(t, first.Resume())
	eventually(t, "the first to serve again", from(head))
	require.NoError(t, first.Stop(pglocal.Immediate))
	eventually(t, "the second to serve", from(newer))
	require.NoError(t, second.Stop(pglocal.Immediate))
	eventually(t, "no replica to be left", func() bool {
		_, err := r.newest(t.Context(), group(1))
		requireCodeIn(t, err, codes.OK, codes.Unavailable)
		return err != nil
	})
	_, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2)})
	require.NoError(t, err, "the primary is up")
	require.True(t, r.serving(t))
	require.NoError(t, second.Start(t.Context()))
	eventually(t, "the second to serve again", from(newer))
}

func requireCodeIn(t testing.TB, err error, codes ...codes.Code) {
	t.Helper()
	require.Contains(t, codes, status.Code(err), "%v", err)
}

// A database that restarts under load costs UNAVAILABLE answers and nothing
// else, and the role recovers by itself.
func TestADatabaseRestartsUnderLoad(t *testing.T) {
	primary, replica := pgtest.OwnCluster(t, fast)
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	conn := connect(t, primary.URL("postgres"))
	head := put(t, conn, group(1), message(1, 3000))
	associate(t, conn, 1, address, 1, 10, 0)
	pgtest.WaitReplayed(t, primary, replica)
	cfg := configuration(t, primary.URL("postgres"), replica.URL("postgres"))
	cfg.PrimaryFallback = 0
	r := start(t, cfg)
	r.awaitServing(t, true)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var answered, refused atomic.Int64
	load := errgroup.Group{}
	for _, ask := range []func() error{
		func() error {
			answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2)})
			if err == nil && len(answer.GetEnvelopes()) != 1 {
				return status.Error(codes.DataLoss, "a wrong page")
			}
			return err
		},
		func() error {
			seen, err := r.newest(t.Context(), group(1))
			if err == nil && seen != head {
				return status.Error(codes.DataLoss, "a wrong head")
			}
			return err
		},
		func() error {
			answer, err := r.GetInboxIds(t.Context(), lookup())
			if err == nil && answer.GetResponses()[0].InboxId == nil {
				return status.Error(codes.DataLoss, "a wrong inbox")
			}
			return err
		},
	} {
		for range 2 {
			load.Go(func() error {
				for ctx.Err() == nil {
					switch err := ask(); status.Code(err) {
					case codes.OK:
						answered.Add(1)
					case codes.Unavailable:
						refused.Add(1)
					default:
						stop()
						return err
					}
				}
				return nil
			})
		}
	}
	answers := func() {
		t.Helper()
		before := answered.Load()
		eventually(t, "answers", func() bool { return answered.Load() > before+200 || ctx.Err() != nil })
	}
	answers()
	for _, server := range []*pglocal.Server{primary, replica} {
		for _, mode := range []pglocal.Mode{pglocal.Fast, pglocal.Immediate} {
			require.NoError(t, server.Stop(mode))
			before := refused.Load()
			eventually(t, "refusals", func() bool { return refused.Load() > before || ctx.Err() != nil })
			require.NoError(t, server.Start(t.Context()))
			answers()
		}
	}
	stop()
	require.NoError(t, load.Wait())
	// The same role, all calls again.
	for _, ask := range []func() error{
		func() error { _, err := r.newest(t.Context(), group(1)); return err },
		func() error {
			_, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2)})
			return err
		},
	} {
		eventually(t, "recovery", func() bool { return ask() == nil })
	}
	t.Logf("%d answered, %d refused", answered.Load(), refused.Load())
}

// The health follows the databases: NOT_SERVING without the schema or any
// database, and back by itself.
func TestHealthFollowsTheDatabases(t *testing.T) {
	primary := pgtest.OwnPrimary(t, fast)
	log := logtest.New()
	r := startLogging(t, configuration(t, primary.URL("postgres")), log.Logger)
	logged := func(parts ...string) {
		t.Helper()
		line := `"level":` + strings.Join(parts, ".*")
		require.Eventually(t, func() bool { return regexp.MustCompile(line).MatchString(log.String()) }, 30*time.Second, 10*time.Millisecond, line)
	}
	_, err := r.newest(t.Context(), group(1))
	requireCodeIn(t, err, codes.Unavailable)
	require.False(t, r.serving(t), "without the schema")
	logged(`"WARN"`, `"database":"primary-0"`, "schema version 0, expected at least")
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	r.awaitServing(t, true)
	logged(`"INFO"`, `"database":"primary-0"`)
	require.NoError(t, primary.Stop(pglocal.Fast))
	r.awaitServing(t, false)
	logged(`"WARN"`, `"database":"primary-0"`, "not reachable")
	_, err = r.newest(t.Context(), group(1))
	requireCodeIn(t, err, codes.Unavailable)
	require.NoError(t, primary.Start(t.Context()))
	r.awaitServing(t, true)
	_, err = r.newest(t.Context(), group(1))
	require.NoError(t, err)
	// There were many probes meanwhile.
	require.Equal(t, 1, strings.Count(log.String(), "schema version 0"), "a cause is logged once")
}
