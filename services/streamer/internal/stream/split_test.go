package stream

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// A page may ask for one topic twice, from different positions: each gets its own rows.
func TestEachRequestOfAPageGetsItsOwnRows(t *testing.T) {
	d := &table{}
	for range 4 {
		d.store("a", 10)
	}
	d.store("b", 10)
	f := &delivery.Fetch{MaxBytes: 1 << 20, Requests: []*delivery.Request{
		{Topic: "a", After: 2, MaxRows: 3}, {Topic: "a", After: 0, MaxRows: 3}, {Topic: "c", MaxRows: 3}, {Topic: "b", After: 0, MaxRows: 1},
	}}
	requests := make([]store.PageRequest, len(f.Requests))
	for i, q := range f.Requests {
		requests[i] = store.PageRequest{Topic: q.Topic, After: q.After, MaxRows: q.MaxRows}
	}
	rows, cut, err := d.ReadPage(t.Context(), requests, f.MaxBytes)
	require.NoError(t, err)
	var got [][]topic.SequenceID
	var more []bool
	for _, result := range split(f, rows, cut) {
		ids := []topic.SequenceID{}
		for _, e := range result.Envelopes {
			ids = append(ids, e.SequenceID)
		}
		got, more = append(got, ids), append(more, result.More)
	}
	require.Equal(t, [][]topic.SequenceID{{3, 4}, {1, 2, 3}, {}, {5}}, got)
	require.Equal(t, []bool{false, true, false, true}, more)
}
