package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/cmd/bench"
)

// fillRows stores envelopes by plain SQL, as short as they may be: what counts is
// the depth of the indexes. %d to %d of them are spread over 50,000 topics.
const fillRows = `
WITH rows AS (
    SELECT decode('00' || lpad(to_hex(n %% 50000), 32, 'e'), 'hex') AS topic, nextval('envelope_sequence') AS id, n
    FROM generate_series(%d, %d) AS n
)
INSERT INTO envelopes SELECT topic, id, 1, NULL, sha256(n::text::bytea), false, pg_current_xact_id()::text::bigint, '\x0a00' FROM rows`

const fillHeads = `INSERT INTO topic_heads SELECT topic, max(sequence_id) FROM envelopes WHERE get_byte(topic, 1) = 238 GROUP BY topic
ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id`

// fillStep is how many rows one transaction stores.
const fillStep = 5_000

// measureFlat compares the cost of operations on a hundredth of the rows with that
// on all.
func measureFlat(ctx context.Context, s *suite) error {
	small := s.flatRows / 100
	if err := s.fill(ctx, 1, small); err != nil {
		return err
	}
	before, err := s.flatCosts(ctx)
	if err != nil {
		return err
	}
	if err := s.fill(ctx, small+1, s.flatRows); err != nil {
		return err
	}
	after, err := s.flatCosts(ctx)
	if err != nil {
		return err
	}
	for i := range before {
		ratio := after[i].each / before[i].each
		fmt.Printf("  %s: %.1f µs with %d envelopes, %.1f µs with %d, ratio %.2f\n", before[i].name, before[i].each, small, after[i].each, s.flatRows, ratio)
		s.figures = append(s.figures, figure{name: before[i].name + fmt.Sprintf(", %d stored", s.flatRows), unit: "µs CPU",
			ours: after[i].each, against: before[i].each, againstName: fmt.Sprintf("%d stored", small), ratio: ratio, target: 1.3, atMost: true})
	}
	return nil
}

func (s *suite) fill(ctx context.Context, from, to int) error {
	conn, err := pgx.Connect(ctx, s.stack.endpoints.PrimaryURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return err
	}
	begun := time.Now()
	for at := from; at <= to; at += fillStep {
		if _, err := conn.Exec(ctx, fmt.Sprintf(fillRows, at, min(at+fillStep-1, to))); err != nil {
			return fmt.Errorf("store rows: %w", err)
		}
	}
	for _, statement := range []string{fillHeads, "VACUUM ANALYZE envelopes", "VACUUM ANALYZE topic_heads", "CHECKPOINT"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%.30s: %w", statement, err)
		}
	}
	fmt.Printf("  %d envelopes stored in %s\n", to, time.Since(begun).Round(time.Second))
	return nil
}

// cost is processor time of the whole backend for one operation, in microseconds.
type cost struct {
	name string
	each float64
}

func (s *suite) flatCosts(ctx context.Context) ([]cost, error) {
	var costs []cost
	for _, part := range []struct {
		name     string
		workload bench.Workload
		change   func(*bench.Config)
	}{
		{"publish", bench.Publish, none},
		{"Query of 100 rows", bench.Query, func(c *bench.Config) { c.Concurrency = readerCount }},
		{"the mix of production", bench.Mixed, func(c *bench.Config) { c.Concurrency = 32 }},
		{"publish to 10 streams", bench.FanOut, func(c *bench.Config) { c.Streams, c.Connections = 10, 2 }},
	} {
		var each []float64
		for range s.rounds {
			before, err := s.stack.cpu()
			if err != nil {
				return nil, err
			}
			begun := time.Now()
			r, err := s.load(ctx, s.stack.endpoints.Gateway, part.workload, part.change)
			if err != nil {
				return nil, err
			}
			after, err := s.stack.cpu()
			if err != nil {
				return nil, err
			}
			used := after.since(before)
			each = append(each, (used.roles+used.primary).Seconds()*1e6/(r.CallsPerSecond*time.Since(begun).Seconds()))
		}
		costs = append(costs, cost{part.name, median(each)})
	}
	return costs, nil
}
