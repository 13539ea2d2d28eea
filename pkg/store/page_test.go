package store_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// clientEnvelope is the stored form of a group message of about size bytes.
func clientEnvelope(t testing.TB, n, size int) []byte {
	t.Helper()
	data := append(fmt.Appendf(nil, "%d ", n), bytes.Repeat([]byte{'x'}, size)...)
	stored, err := proto.Marshal(&backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_GroupMessage{GroupMessage: &backendv1.GroupMessage{Data: data}}})
	require.NoError(t, err)
	return stored
}

// ids are the sequence ids of a page, by topic, in the order of the page.
func ids(rows []store.PageRow) map[topic.Topic][]topic.SequenceID {
	byTopic := map[topic.Topic][]topic.SequenceID{}
	for _, row := range rows {
		byTopic[row.Topic] = append(byTopic[row.Topic], row.SequenceID)
	}
	return byTopic
}

func TestAPageHoldsEnvelopesReadyToSend(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	pool, _ := openInstance(t, db.PrimaryURL)
	payload := clientEnvelope(t, 1, 5000)
	id := insert(t, conn, group(1), payload)
	_, err := conn.Exec(t.Context(), `UPDATE envelopes SET expiry_ns = 2000, is_commit_or_proposal = true`)
	require.NoError(t, err)

	rows, cut, err := pool.ReadPage(t.Context(), []store.PageRequest{{Topic: group(1), MaxRows: 10}}, 1<<20)
	require.NoError(t, err)
	require.False(t, cut)
	require.Len(t, rows, 1)
	require.Equal(t, id, rows[0].SequenceID)
	require.EqualValues(t, 1000, rows[0].ServerNS)
	var sent backendv1.ServerEnvelope
	require.NoError(t, proto.Unmarshal(rows[0].Encoded, &sent))
	require.EqualValues(t, id, sent.GetMeta().GetCursor().GetSequenceId())
	require.EqualValues(t, 1000, sent.GetMeta().GetServerNs())
	require.EqualValues(t, 2000, sent.GetMeta().GetExpiryNs())
	require.True(t, sent.GetMeta().GetIsCommitOrProposal())
	require.Equal(t, []byte(group(1)), sent.GetMeta().GetTopic().GetTopic())
	require.Len(t, sent.GetMeta().GetMessageHash().GetSha256(), 32)
	returned, err := proto.Marshal(sent.GetEnvelope())
	require.NoError(t, err)
	require.Equal(t, payload, returned)
}

func TestAPageIsAPrefixAboveEachCursor(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	pool, _ := openInstance(t, db.PrimaryURL)
	stored := map[topic.Topic][]topic.SequenceID{}
	for i := range 30 { // interleaved: 15, 10 and 5 rows
		name := group([]int{1, 2, 1, 3, 1, 2}[i%6])
		stored[name] = append(stored[name], insert(t, conn, name, clientEnvelope(t, i, 10)))
	}
	all := []topic.SequenceID{}
	for _, c := range []struct {
		name    string
		request store.PageRequest
		want    []topic.SequenceID
	}{
		{"from the beginning", store.PageRequest{Topic: group(1), MaxRows: 100}, stored[group(1)]},
		{"fewer rows", store.PageRequest{Topic: group(1), MaxRows: 4}, stored[group(1)][:4]},
		{"above a cursor", store.PageRequest{Topic: group(2), After: stored[group(2)][3], MaxRows: 100}, stored[group(2)][4:]},
		{"at the head", store.PageRequest{Topic: group(2), After: stored[group(2)][9], MaxRows: 100}, nil},
		{"far above the head", store.PageRequest{Topic: group(2), After: 1<<63 - 1, MaxRows: 100}, nil},
		{"no such topic", store.PageRequest{Topic: group(9), MaxRows: 100}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows, cut, err := pool.ReadPage(t.Context(), []store.PageRequest{c.request}, 1<<20)
			require.NoError(t, err)
			require.False(t, cut)
			require.Equal(t, c.want, ids(rows)[c.request.Topic])
			require.Len(t, rows, len(c.want))
		})
	}
	rows, cut, err := pool.ReadPage(t.Context(), []store.PageRequest{
		{Topic: group(3), MaxRows: 100}, {Topic: group(9), MaxRows: 1}, {Topic: group(1), After: stored[group(1)][0], MaxRows: 2},
		{Topic: group(1), MaxRows: 3}}, 1<<20) // a topic twice, from different positions
	require.NoError(t, err)
	require.False(t, cut)
	var requests []int
	for _, row := range rows {
		all, requests = append(all, row.SequenceID), append(requests, row.Request)
	}
	require.Equal(t, slices.Concat(stored[group(3)], stored[group(1)][1:3], stored[group(1)][:3]), all, "in the order of the requests")
	require.Equal(t, []int{0, 0, 0, 0, 0, 2, 2, 3, 3, 3}, requests)
}

// The bytes of a page are spent in turns over its topics, and a page always
// makes progress.
func TestTheBytesOfAPageAreSharedByItsTopics(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	pool, _ := openInstance(t, db.PrimaryURL)
	const size = 10_000
	for i := range 20 {
		insert(t, conn, group(1), clientEnvelope(t, i, size))
	}
	for i := range 3 {
		insert(t, conn, group(2), clientEnvelope(t, i, size))
	}
	requests := []store.PageRequest{{Topic: group(1), MaxRows: 20}, {Topic: group(2), MaxRows: 20}}
	for _, c := range []struct{ bytes, first, second int }{
		{1, 1, 0}, {size, 1, 0}, {size + 100, 1, 1}, {4 * size, 2, 2}, {7*size + 500, 5, 3}, {1 << 20, 20, 3},
	} {
		rows, cut, err := pool.ReadPage(t.Context(), requests, c.bytes)
		require.NoError(t, err)
		require.Len(t, ids(rows)[group(1)], c.first, "%d bytes", c.bytes)
		require.Len(t, ids(rows)[group(2)], c.second, "%d bytes", c.bytes)
		require.Equal(t, c.first+c.second < 23, cut)
	}
}

func BenchmarkReadPage(b *testing.B) {
	db := pgtest.MigratedPrimary(b, migrate)
	conn := connect(b, db.PrimaryURL)
	for i := range 100 {
		insert(b, conn, group(1), clientEnvelope(b, i, 1024))
	}
	pool, _ := openInstance(b, db.PrimaryURL)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := pool.ReadPage(b.Context(), []store.PageRequest{{Topic: group(1), MaxRows: 100}}, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}
