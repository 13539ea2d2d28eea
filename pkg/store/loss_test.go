package store

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
)

// A connection that is lost while answers are outstanding says so once as a failed
// read, and from then on as closed. Both are the database's absence.
func TestALostConnectionIsUnavailableEachTimeItIsAsked(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), pgtest.Database(t))
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	pipeline := conn.PgConn().StartPipeline(t.Context())
	for range 2 {
		pipeline.SendQueryParams("SELECT 1", nil, nil, nil, nil)
	}
	require.NoError(t, pipeline.Sync())
	require.NoError(t, conn.PgConn().Conn().Close())
	for range 2 {
		_, err := pipeline.GetResults()
		require.Error(t, err)
		require.Equal(t, fault.Unavailable, fault.KindOf(classify(err, "read")), "%v", err)
	}
}
