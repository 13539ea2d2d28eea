package streamer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
	s.awaitAllFor(5*time.Second, rows)
	rows = append(rows, r.writer.store(group(1), group(1))...)
	rows = append(rows, r.writer.publish(group(1))...)
	s.awaitAllFor(5*time.Second, rows)
}
