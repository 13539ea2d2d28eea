package pgbench_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/pgbench"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, config.Secret(url))
	return err
}

// Either statement stores one whole row a transaction.
func TestATransactionStoresOneEnvelope(t *testing.T) {
	for _, least := range []bool{false, true} {
		t.Run(fmt.Sprint("least=", least), func(t *testing.T) {
			url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
			p, err := pgbench.New(pgbench.Options{Dir: t.TempDir(), URL: url, Least: least, Topics: 3, MessageBytes: 200})
			require.NoError(t, err)
			r, err := p.Run(t.Context(), 1, time.Second)
			require.NoError(t, err)
			require.Positive(t, r.Rate)
			require.Positive(t, r.Latency)
			conn, err := pgx.Connect(t.Context(), url)
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close(context.Background())) }()
			var rows, topics, bytes int
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT topic), min(length(payload)) FROM envelopes`).Scan(&rows, &topics, &bytes))
			require.Equal(t, r.Count, rows)
			require.Equal(t, 3, topics)
			require.Equal(t, 200+pgbench.OverheadBytes, bytes)
		})
	}
}

func TestAnUnreachableDatabaseIsSaid(t *testing.T) {
	p, err := pgbench.New(pgbench.Options{Dir: t.TempDir(), URL: "postgres://nobody@127.0.0.1:1/none", Topics: 1, MessageBytes: 1})
	require.NoError(t, err)
	_, err = p.Run(t.Context(), 1, time.Second)
	require.ErrorContains(t, err, "pgbench")
	_, err = pgbench.New(pgbench.Options{Dir: t.TempDir() + "/none"})
	require.ErrorIs(t, err, os.ErrNotExist)
}
