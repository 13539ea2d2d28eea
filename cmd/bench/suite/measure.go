package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/cmd/bench"
	"github.com/xmtp-selfhosted/backend/pkg/pgbench"
)

// warmup precedes every turn.
const warmup = time.Second

// figure is a result and its yardstick, as medians over the rounds.
type figure struct {
	name, unit    string
	ours          float64
	against       float64 // 0 without a yardstick
	againstName   string
	ratio         float64
	target        float64
	atMost        bool // the target is an upper bound
	ratios        []float64
	targetInUnits bool // the target is of ours, not of the ratio
}

func (f figure) met() bool {
	value := f.ratio
	if f.targetInUnits {
		value = f.ours
	}
	if f.atMost {
		return value <= f.target
	}
	return value >= f.target
}

// chart is a curve to write.
type chart struct {
	file, title string
	svg         []byte
}

// turns measures a yardstick and ours alternately.
func (s *suite) turns(f figure, yardstick, ours func() (float64, error)) error {
	var bases, values []float64
	for round := range s.rounds {
		base, err := yardstick()
		if err != nil {
			return err
		}
		value, err := ours()
		if err != nil {
			return err
		}
		bases, values, f.ratios = append(bases, base), append(values, value), append(f.ratios, value/base)
		fmt.Printf("  round %d: %s %.0f, %s %.0f %s, ratio %.2f\n", round+1, f.againstName, base, f.name, value, f.unit, value/base)
	}
	f.ratio = median(append([]float64(nil), f.ratios...))
	f.ours, f.against = median(values), median(bases)
	s.figures = append(s.figures, f)
	return nil
}

// load runs a workload for a turn.
func (s *suite) load(ctx context.Context, endpoint string, w bench.Workload, change func(*bench.Config)) (*bench.Result, error) {
	config := bench.Default(w)
	config.Endpoint, config.Warmup, config.Duration, config.Size = endpoint, warmup, s.length, messageBytes
	change(&config)
	result, err := bench.Run(ctx, config, nil)
	if err != nil {
		return nil, err
	}
	if result.Errors > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%s: %d calls failed, the first with %s", w, result.Errors, result.FirstError))
	}
	return result, nil
}

func none(*bench.Config) {}

func measurePublish(ctx context.Context, s *suite) error {
	rows := func() (float64, error) { r, err := s.pgbench.Run(ctx, 64, s.length); return r.Rate, err }
	gateway, publisher := s.stack.endpoints.Gateway, s.stack.endpoints.Publisher
	var costs []float64
	throughGateway := func() (float64, error) {
		before, err := s.stack.cpu()
		if err != nil {
			return 0, err
		}
		begun := time.Now()
		r, err := s.load(ctx, gateway, bench.Publish, none)
		if err != nil {
			return 0, err
		}
		after, err := s.stack.cpu()
		if err != nil {
			return 0, err
		}
		// The warm-up costs, too: what it did is reckoned at the rate measured.
		published := r.EnvelopesPerSecond * time.Since(begun).Seconds()
		used := after.since(before)
		costs = append(costs, (used.roles+used.primary).Seconds()*1000/published)
		s.charts = append(s.charts, chart{"publish.svg", "Publish of 1 KiB through the gateway, 64 clients", r.Chart("publish, 64 callers, 1 KiB")})
		return r.EnvelopesPerSecond, nil
	}
	direct := func() (float64, error) {
		r, err := s.load(ctx, publisher, bench.Publish, none)
		return perSecond(r), err
	}
	hundred := func() (float64, error) {
		r, err := s.load(ctx, gateway, bench.Publish, func(c *bench.Config) { c.PerRequest, c.Concurrency = 100, 8 })
		return perSecond(r), err
	}
	for _, part := range []struct {
		f    figure
		ours func() (float64, error)
	}{
		{figure{name: "publish through the gateway", unit: "messages/s", againstName: "pgbench", target: 0.8}, throughGateway},
		{figure{name: "publish to the publisher", unit: "messages/s", againstName: "pgbench", target: 1.15}, direct},
		{figure{name: "publish, 100 a request", unit: "messages/s", againstName: "pgbench", target: 2.5}, hundred},
	} {
		if err := s.turns(part.f, rows, part.ours); err != nil {
			return err
		}
	}
	s.figures = append(s.figures, figure{name: "CPU a message, roles and primary", unit: "ms", ours: median(costs), target: 0.18, atMost: true, targetInUnits: true})
	return nil
}

func perSecond(r *bench.Result) float64 {
	if r == nil {
		return 0
	}
	return r.EnvelopesPerSecond
}

func measureSingle(ctx context.Context, s *suite) error {
	commit := func() (float64, error) {
		r, err := s.pgbench.Run(ctx, 1, s.length)
		return float64(r.Latency.Microseconds()), err
	}
	for _, part := range []struct{ name, endpoint string }{
		{"publish with one client, publisher", s.stack.endpoints.Publisher},
		{"publish with one client, gateway", s.stack.endpoints.Gateway},
	} {
		err := s.turns(figure{name: part.name, unit: "µs", againstName: "pgbench commit", target: 2, atMost: true}, commit, func() (float64, error) {
			r, err := s.load(ctx, part.endpoint, bench.Publish, func(c *bench.Config) { c.Concurrency, c.Connections = 1, 1 })
			if err != nil {
				return 0, err
			}
			return r.Call.Mean * 1000, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func measureLatency(ctx context.Context, s *suite) error {
	var medians, tails []float64
	for round := range s.rounds {
		r, err := s.load(ctx, s.stack.endpoints.Gateway, bench.FanOut, func(c *bench.Config) {
			c.Streams, c.Rate, c.Concurrency, c.Connections = 1, 500, 16, 2
		})
		if err != nil {
			return err
		}
		medians, tails = append(medians, r.Delivery.P50), append(tails, r.Delivery.P99)
		fmt.Printf("  round %d: publish call to delivery at %.0f/s: median %.2f ms, 99%% %.2f ms\n", round+1, r.CallsPerSecond, r.Delivery.P50, r.Delivery.P99)
		if round == s.rounds-1 {
			s.charts = append(s.charts, chart{"delivery.svg", "Publish call to delivery at 500 a second", r.Chart("publish call to delivery, 500 messages a second")})
		}
	}
	s.figures = append(s.figures,
		figure{name: "publish call to delivery, median", unit: "ms", ours: median(medians), target: 2, atMost: true, targetInUnits: true},
		figure{name: "publish call to delivery, 99 %", unit: "ms", ours: median(tails), target: 10, atMost: true, targetInUnits: true})
	return nil
}

const (
	// The statement that pgx reads the same rows with.
	readRows   = `SELECT sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, payload FROM envelopes WHERE topic = $1 AND sequence_id > $2 ORDER BY sequence_id LIMIT $3`
	longTopics = `SELECT topic FROM envelopes WHERE get_byte(topic, 0) = 0 GROUP BY topic HAVING count(*) = $1 LIMIT $2`
	// Enough callers, of the backend and of pgx, that neither waits with a core idle.
	readerCount = 16
)

func measureQuery(ctx context.Context, s *suite) error {
	const rows, topics = 137, 100 // a length that no other section makes
	ours := func() (float64, error) {
		r, err := s.load(ctx, s.stack.endpoints.Gateway, bench.Query, func(c *bench.Config) { c.Rows, c.Topics, c.Page, c.Concurrency = rows, topics, 100, readerCount })
		return perSecond(r), err
	}
	if _, err := ours(); err != nil { // stores what pgx reads, too
		return err
	}
	return s.turns(figure{name: "Query of 100 rows", unit: "rows/s", againstName: "pgx", target: 0.5},
		func() (float64, error) {
			return readTurn(ctx, s.stack.endpoints.PrimaryURL, rows, topics, 100, 100, s.length)
		}, ours)
}

func measureCatchUp(ctx context.Context, s *suite) error {
	const rows, topics = 2003, 8
	ours := func() (float64, error) {
		r, err := s.load(ctx, s.stack.endpoints.Gateway, bench.CatchUp, func(c *bench.Config) { c.Rows, c.Topics, c.Concurrency = rows, topics, readerCount })
		return perSecond(r), err
	}
	if _, err := ours(); err != nil {
		return err
	}
	return s.turns(figure{name: "catch-up", unit: "rows/s", againstName: "pgx", target: 0.5},
		func() (float64, error) {
			return readTurn(ctx, s.stack.endpoints.ReplicaURL, rows, topics, 1000, rows, s.length)
		}, ours)
}

// readTurn reads whole topics of a length by pgx, a page at a time, with a few
// readers, and returns rows per second. most bounds the rows of one pass.
func readTurn(ctx context.Context, url string, rows, topics, page, most int, length time.Duration) (float64, error) {
	admin, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	found, err := admin.Query(ctx, longTopics, rows, topics)
	if err != nil {
		return 0, err
	}
	names, err := pgx.CollectRows(found, pgx.RowTo[[]byte])
	_ = admin.Close(ctx)
	if err != nil || len(names) == 0 {
		return 0, fmt.Errorf("find the topics to read: %d found: %w", len(names), err)
	}
	type result struct {
		rows int
		err  error
	}
	results := make(chan result)
	begun := time.Now()
	for reader := range readerCount {
		go func() {
			n, err := readUntil(ctx, url, names, reader, page, most, begun.Add(length))
			results <- result{n, err}
		}()
	}
	sum := 0
	for range readerCount {
		r := <-results
		sum += r.rows
		if r.err != nil {
			err = r.err
		}
	}
	return float64(sum) / time.Since(begun).Seconds(), err
}

func readUntil(ctx context.Context, url string, names [][]byte, first, page, most int, until time.Time) (total int, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	for i := first; time.Now().Before(until); i++ {
		var cursor, id, ns int64
		var expiry *int64
		var hash, payload []byte
		var commit bool
		for pass := 0; pass < most; {
			found, err := conn.Query(ctx, readRows, names[i%len(names)], cursor, page)
			if err != nil {
				return total, err
			}
			tag, err := pgx.ForEachRow(found, []any{&id, &ns, &expiry, &hash, &commit, &payload}, func() error { cursor = id; return nil })
			if err != nil {
				return total, err
			}
			n := int(tag.RowsAffected())
			pass += n
			total += n
			if n < page {
				break
			}
		}
	}
	return total, nil
}

func measureFanOut(ctx context.Context, s *suite) error {
	const streams, connections = 500, 8
	bare := func() (float64, error) {
		return bareStreams(ctx, streams, connections, messageBytes+2*pgbench.OverheadBytes, s.length)
	}
	for _, part := range []struct{ name, endpoint string }{
		{"fan-out to 500 streams, streamer", s.stack.endpoints.Streamer},
		{"fan-out to 500 streams, gateway", s.stack.endpoints.Gateway},
	} {
		err := s.turns(figure{name: part.name, unit: "deliveries/s", againstName: "bare grpc-go", target: 0.6}, bare, func() (float64, error) {
			r, err := s.load(ctx, part.endpoint, bench.FanOut, func(c *bench.Config) {
				c.Streams, c.Connections, c.PublishEndpoint = streams, connections, s.stack.endpoints.Publisher
			})
			return perSecond(r), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func measureMixed(ctx context.Context, s *suite) error {
	r, err := s.load(ctx, s.stack.endpoints.Gateway, bench.Mixed, func(c *bench.Config) { c.Concurrency = 32 })
	if err != nil {
		return err
	}
	fmt.Printf("  %.0f calls/s, median %.2f ms, 99%% %.2f ms\n", r.CallsPerSecond, r.Call.P50, r.Call.P99)
	s.figures = append(s.figures, figure{name: "the mix of production, 32 callers", unit: "calls/s", ours: r.CallsPerSecond})
	s.charts = append(s.charts, chart{"mixed.svg", "The calls of production in their shares", r.Chart("650 GetInboxIds, 200 QueryNewest, 134 Query, 16 Publish of 1,000")})
	return nil
}
