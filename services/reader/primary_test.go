package reader_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// API-018: Query reads the primary, also when the URL leads to a standby that
// lags: it answers in full or not at all, before, during and after a failover.
//
// Proves API-018.
func TestQueryIsNeverAnsweredByAStandby(t *testing.T) {
	primary, standby := pgtest.OwnCluster(t, fast)
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	conn := connect(t, primary.URL("postgres"))
	first := put(t, conn, group(0), message(1, 10))
	pgtest.WaitReplayed(t, primary, standby)
	execute(t, connect(t, standby.URL("postgres")), `SELECT pg_wal_replay_pause()`)
	all := []uint64{first, put(t, conn, group(0), message(2, 10))}

	log := logtest.New()
	// The standby comes first, so that only its being one leads on to the primary.
	r := startLogging(t, configuration(t, fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", standby.Port(), primary.Port())), log.Logger)
	ask := func() error {
		t.Helper()
		answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(1)})
		requireCodeIn(t, err, codes.OK, codes.Unavailable)
		if err == nil {
			require.Equal(t, all, ids(answer.GetEnvelopes()))
		}
		return err
	}
	require.NoError(t, ask())
	r.awaitServing(t, true)

	require.NoError(t, primary.Stop(pglocal.Fast))
	r.awaitServing(t, false)
	require.Error(t, ask())
	eventually(t, "the cause in the log", func() bool {
		return strings.Contains(log.String(), "the database is a standby, expected the primary")
	})
	require.False(t, r.serving(t))

	execute(t, connect(t, standby.URL("postgres")), `SELECT pg_wal_replay_resume()`)
	require.NoError(t, standby.Promote(t.Context()))
	r.awaitServing(t, true)
	eventually(t, "an answer of the new primary", func() bool { return ask() == nil })
}

// Before the first probe, too.
//
// Proves API-018.
func TestAStandbyAsThePrimary(t *testing.T) {
	db := pgtest.Migrated(t, migrate)
	pgtest.WaitReplayed(t, pgtest.Primary(t), replicaServer(t))
	r := start(t, configuration(t, db.ReplicaURL, db.ReplicaURL))
	_, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(1)})
	requireCode(t, codes.Unavailable, err)
	_, err = r.newest(t.Context(), group(0))
	require.NoError(t, err, "other reads may use a standby")
	r.awaitServing(t, true)
}
