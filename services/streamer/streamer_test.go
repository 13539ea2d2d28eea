package streamer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// Proves API-095, API-105, API-112, I5.
func TestHistoryThenLive(t *testing.T) {
	r := start(t)
	rows := r.writer.store(group(1), group(2), group(1), group(1))
	s := subscribe(t, r.client)
	targets := s.add(group(2), group(1), group(3))
	require.Len(t, targets, 3)
	require.EqualValues(t, rows[1].id, targets[0].ThroughSequenceId)
	require.EqualValues(t, rows[3].id, targets[1].ThroughSequenceId)
	require.Zero(t, targets[2].ThroughSequenceId)
	s.awaitAll(rows)
	for range 20 {
		rows = append(rows, r.writer.publish(group(1), group(3))...)
	}
	s.awaitAll(rows)
}

func TestTheSweepFindsWhatNoNoticeAnnounced(t *testing.T) {
	r := start(t)
	s := subscribe(t, r.client)
	s.add(group(1))
	rows := r.writer.store(group(1))
	s.awaitAll(rows)
	rows = append(rows, r.writer.store(group(1), group(1))...)
	rows = append(rows, r.writer.publish(group(1))...)
	s.awaitAll(rows)
}

func TestNoStreamIsServedBelowTheSchema(t *testing.T) {
	url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	execute := func(statement string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), statement, store.LowestSchema)
		require.NoError(t, err)
	}
	execute(`DELETE FROM goose_db_version WHERE version_id >= $1`)
	log := logtest.New()
	r := &role{t: t, bus: newBus(t)}
	r.begin(url, func(_ *streamer.Config, deps *streamer.Deps) { deps.Logger = log.Logger })
	cause := fmt.Sprintf("schema version %d, expected at least %d", store.LowestSchema-1, store.LowestSchema)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), cause) }, within, 10*time.Millisecond, cause)
	serving := func() bool {
		answer, err := healthv1.NewHealthClient(r.conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
		return err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING
	}
	require.Never(t, serving, time.Second, 50*time.Millisecond)
	require.Equal(t, 1, strings.Count(log.String(), cause), "a cause is logged once")
	execute(`INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, true)`)
	r.waitServing()
	require.True(t, serving())
}
