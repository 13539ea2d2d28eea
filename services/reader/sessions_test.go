package reader_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// reading is clients that read all the time.
type reading struct {
	answered atomic.Int64
	refused  atomic.Int64
	last     atomic.Value // of the refusals
	stop     func()
}

func (r role) keepReading(t *testing.T, asks ...func() error) *reading {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	clients, load := &errgroup.Group{}, &reading{}
	for _, ask := range asks {
		for range 3 {
			clients.Go(func() error {
				for ctx.Err() == nil {
					if err := ask(); err != nil {
						load.refused.Add(1)
						load.last.Store(status.Convert(err).Message())
					} else {
						load.answered.Add(1)
					}
				}
				return nil
			})
		}
	}
	load.stop = func() {
		cancel()
		_ = clients.Wait()
	}
	t.Cleanup(load.stop)
	return load
}

func (l *reading) awaitMore(t *testing.T, answers int64) {
	t.Helper()
	before := l.answered.Load()
	eventually(t, "more answers", func() bool { return l.answered.Load() > before+answers })
}

// seeded migrates a database and stores what replicaReads reads.
func seeded(t *testing.T, primary *pglocal.Server) {
	t.Helper()
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	conn := connect(t, primary.URL("postgres"))
	put(t, conn, group(1), message(1, 100))
	associate(t, conn, 1, address, 1, 10, 0)
}

// replicaReads are the reads of a replica.
func (r role) replicaReads(t *testing.T) []func() error {
	t.Helper()
	return []func() error{
		func() error { _, err := r.newest(t.Context(), group(1)); return err },
		func() error { _, err := r.GetInboxIds(t.Context(), lookup()); return err },
	}
}

// The end of a session is not the end of a server: reads go on with another one, and
// so does the question whether the server is up.
func TestEndedSessionsCostNoRead(t *testing.T) {
	primary, replica := pgtest.OwnCluster(t, fast)
	seeded(t, primary)
	pgtest.WaitReplayed(t, primary, replica)
	cfg := configuration(t, primary.URL("postgres"), replica.URL("postgres"))
	cfg.PrimaryFallback = 0
	r := start(t, cfg)
	r.awaitServing(t, true)
	reads := append(r.replicaReads(t), func() error {
		_, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(2)})
		return err
	})
	load := r.keepReading(t, reads...)
	operators := []*pgx.Conn{connect(t, primary.URL("postgres")), connect(t, replica.URL("postgres"))}
	for range 30 {
		load.awaitMore(t, 50)
		for _, operator := range operators {
			execute(t, operator, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'xmtp-backend'`)
		}
	}
	load.awaitMore(t, 50)
	load.stop()
	t.Logf("%d answered, %d refused", load.answered.Load(), load.refused.Load())
	require.Zero(t, load.refused.Load(), "%v", load.last.Load())
}

// While no replica is up the primary serves: at the start, later, and until one is
// back.
func TestThePrimaryServesWhileNoReplicaIsUp(t *testing.T) {
	primary, replica := pgtest.OwnCluster(t, fast)
	seeded(t, primary)
	require.NoError(t, replica.Stop(pglocal.Fast))
	r := start(t, configuration(t, primary.URL("postgres"), replica.URL("postgres")))
	reads := r.replicaReads(t)
	for _, read := range reads {
		require.NoError(t, read(), "before the first probe")
	}
	r.awaitServing(t, true)
	load := r.keepReading(t, reads...)
	load.awaitMore(t, 100)
	require.NoError(t, replica.Start(t.Context()))
	pgtest.WaitReplayed(t, primary, replica)
	standby := connect(t, replica.URL("postgres"))
	eventually(t, "the replica to serve", func() bool {
		var sessions int
		require.NoError(t, standby.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'xmtp-backend'`).Scan(&sessions))
		return sessions > 1 // beside the one of the probes
	})
	for _, mode := range []pglocal.Mode{pglocal.Fast, pglocal.Immediate} {
		load.awaitMore(t, 100)
		require.NoError(t, replica.Stop(mode))
		load.awaitMore(t, 500)
		require.True(t, r.serving(t))
		require.NoError(t, replica.Start(t.Context()))
	}
	load.stop()
	t.Logf("%d answered, %d refused", load.answered.Load(), load.refused.Load())
	require.Zero(t, load.refused.Load(), "%v", load.last.Load())
}
