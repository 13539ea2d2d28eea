package reader_test

import (
	"math"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// skewed is how many envelopes the i-th of 1,000 topics has: a few have hundreds,
// many have none.
func skewed(i int) int { return int(900/math.Pow(float64(i+1), 0.9)) - 1 + i%3 }

// pager drains topics as a client does under API-074.
type pager struct {
	r       role
	cursors map[topic.Topic]uint64
	got     map[topic.Topic][]uint64
	order   []topic.Topic
	pages   int
	rows    int
}

func newPager(r role, order []topic.Topic) *pager {
	return &pager{r: r, cursors: map[topic.Topic]uint64{}, got: map[topic.Topic][]uint64{}, order: order}
}

func (p *pager) page(t *testing.T, limit uint32) bool {
	t.Helper()
	request := &backendv1.QueryRequest{Limit: limit}
	for _, name := range p.order {
		request.Queries = append(request.Queries, query(name, p.cursors[name]))
	}
	answer, err := p.r.Query(t.Context(), request)
	require.NoError(t, err)
	for _, e := range answer.GetEnvelopes() {
		name, id := topic.Topic(e.GetMeta().GetTopic().GetTopic()), e.GetMeta().GetCursor().GetSequenceId()
		require.Greater(t, id, p.cursors[name], "ascending above the cursor")
		p.cursors[name] = id
		p.got[name] = append(p.got[name], id)
	}
	p.pages++
	p.rows += len(answer.GetEnvelopes())
	more := answer.GetContinuation().GetHasMore()
	if more {
		require.Len(t, answer.GetEnvelopes(), int(limit), "a page that is not the last is full")
	}
	return more
}

// stored is what is on each topic, in order.
func stored(t *testing.T, conn *pgx.Conn) map[topic.Topic][]uint64 {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT topic, sequence_id FROM envelopes ORDER BY sequence_id`)
	require.NoError(t, err)
	all := map[topic.Topic][]uint64{}
	var name []byte
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&name, &id}, func() error {
		all[topic.Topic(name)] = append(all[topic.Topic(name)], uint64(id))
		return nil
	})
	require.NoError(t, err)
	return all
}

// A loop over 1,000 topics of skewed sizes, while others publish, returns each
// envelope once and in order, in as few pages as there can be.
//
// Proves API-072, API-076, I2.
func TestAPagingLoopDrainsTheUnion(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn, publisher := connect(t, db.PrimaryURL), connect(t, db.PrimaryURL)
	r := start(t, configuration(t, db.PrimaryURL))
	const topics = 1000
	var order []topic.Topic
	for i := range topics {
		order = append(order, group(i))
	}
	execute(t, conn, `
		INSERT INTO envelopes (topic, sequence_id, server_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
		SELECT '\x00'::bytea || int8send(i) || int8send(0), nextval('envelope_sequence'), 1000, sha256(int8send(n)), false, 1, '\x0a020a00'
		FROM unnest($1::bigint[]) WITH ORDINALITY AS t (rows, place), generate_series(0, 999) AS n, LATERAL (SELECT place - 1 AS i) AS p
		WHERE n < rows ORDER BY n, i`, sizes(topics))
	execute(t, conn, `INSERT INTO topic_heads SELECT topic, max(sequence_id) FROM envelopes GROUP BY topic`)

	for _, limit := range []uint32{1000, 300} {
		p := newPager(r, order)
		published := errgroup.Group{}
		published.Go(func() error {
			for i := range 200 {
				put(t, publisher, group(i*31%topics), message(int(limit)*1000+i, 10))
			}
			return nil
		})
		for p.page(t, limit) {
		}
		require.NoError(t, published.Wait())
		for p.page(t, limit) { // what came after the last page
		}
		want := stored(t, conn)
		require.Equal(t, want, p.got)
		require.LessOrEqual(t, p.pages, p.rows/int(limit)+3, "pages for %d rows", p.rows)
		t.Logf("%d rows in %d pages of %d", p.rows, p.pages, limit)
	}
}

func sizes(n int) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = int64(max(0, skewed(i)))
	}
	return all
}

// Each topic gets its share of every page, however long the others are; with
// more topics than rows, each gets one after a while.
//
// Proves API-076.
func TestPagesAreFair(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	r := start(t, configuration(t, db.PrimaryURL))
	const topics = 40
	var order []topic.Topic
	for i := range topics {
		order = append(order, group(i))
		fill(t, conn, i, []int{400, 20}[min(i, 1)])
	}
	t.Run("a share of each page", func(t *testing.T) {
		p := newPager(r, order)
		for pages := 1; pages <= 4; pages++ {
			p.page(t, 200)
			for _, name := range order {
				require.GreaterOrEqual(t, len(p.got[name]), min(20, 5*pages), "after %d pages", pages)
			}
		}
	})
	t.Run("more topics than rows", func(t *testing.T) {
		p := newPager(r, order)
		for range 400 { // a topic is passed over with a chance of 3 in 4 each time
			p.page(t, 10)
			if len(p.got) == topics {
				return
			}
		}
		t.Fatalf("only %d of %d topics were served", len(p.got), topics)
	})
}

// A query of one topic has a statement of its own, which answers as the one for
// any number does.
//
// Proves API-072.
func TestPagesOfOneTopic(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	r := start(t, configuration(t, db.PrimaryURL))
	const rows = 7
	var all []uint64
	for i := range rows {
		put(t, conn, group(0), message(100+i, 10))
		all = append(all, put(t, conn, group(1), message(i, []int{10, 5000}[i%2]))) // some of them out of line
		put(t, conn, group(2), message(200+i, 10))
	}
	for limit := 1; limit <= rows+1; limit++ {
		for from := range rows + 1 {
			after := uint64(0)
			if from > 0 {
				after = all[from-1]
			}
			ask := &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{query(group(1), after)}, Limit: uint32(limit)}
			one, err := r.Query(t.Context(), ask)
			require.NoError(t, err)
			until := min(from+limit, rows)
			require.Equal(t, all[from:until], append([]uint64{}, ids(one.GetEnvelopes())...), "above %d, limit %d", after, limit)
			require.Equal(t, until < rows, one.GetContinuation().GetHasMore(), "above %d, limit %d", after, limit)
			if from > 0 && limit > 1 { // beside a topic without rows
				ask.Queries = append(ask.Queries, query(group(3), 0))
				ask.Limit = uint32(2 * limit)
				general, err := r.Query(t.Context(), ask)
				require.NoError(t, err)
				for i, envelope := range one.GetEnvelopes() {
					require.True(t, proto.Equal(envelope, general.GetEnvelopes()[i]))
				}
			}
		}
	}
}

// API-077: repeated topics coalesce at the lowest cursor, after validation.
//
// Proves API-077.
func TestRepeatedTopicsCoalesce(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	conn := connect(t, db.PrimaryURL)
	r := start(t, configuration(t, db.PrimaryURL))
	var all []uint64
	for i := range 6 {
		all = append(all, put(t, conn, group(1), message(i, 10)))
	}
	answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{
		query(group(1), all[4]), query(group(2), 0), query(group(1), all[1]), query(group(1), all[3]),
	}})
	require.NoError(t, err)
	require.Equal(t, all[2:], ids(answer.GetEnvelopes()))
	answer, err = r.Query(t.Context(), &backendv1.QueryRequest{})
	require.NoError(t, err)
	require.Empty(t, answer.GetEnvelopes())
	require.NotNil(t, answer.GetContinuation())
}

// has_more and the page are of one snapshot: while rows come in one by one, a
// page that says there is no more holds all up to some moment.
//
// Proves API-073, API-077.
func TestHasMoreIsOfTheSameSnapshot(t *testing.T) {
	db := pgtest.MigratedPrimary(t, migrate)
	publisher := connect(t, db.PrimaryURL)
	r := start(t, configuration(t, db.PrimaryURL))
	published := errgroup.Group{}
	published.Go(func() error {
		for i := range 300 {
			put(t, publisher, group(i%3), message(i, 10))
		}
		return nil
	})
	last := 0
	for last < 300 {
		answer, err := r.Query(t.Context(), &backendv1.QueryRequest{Queries: queries(3), Limit: 1000})
		require.NoError(t, err)
		require.False(t, answer.GetContinuation().GetHasMore())
		found := ids(answer.GetEnvelopes())
		slices.Sort(found)
		for i, id := range found {
			require.EqualValues(t, i+1, id, "a gap in %v", found)
		}
		require.GreaterOrEqual(t, len(found), last)
		last = len(found)
	}
	require.NoError(t, published.Wait())
}
