package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/xmtp-selfhosted/backend/cmd/bench"
)

// liveLoad is the traffic that latencies of streams are measured with: 500
// envelopes a second on 1,000 topics, to 50 streams.
func liveLoad(c *bench.Config) {
	c.Streams, c.Topics, c.Rate, c.Concurrency, c.Connections = 50, 20, 500, 16, 2
}

// latency is from the publish call to the delivery, in milliseconds: medians over
// the rounds.
type latency struct{ median, tail float64 }

// measureLive is the latency with nothing beside it, the roles of streams in
// processes of their own.
func measureLive(ctx context.Context, s *suite) error {
	got, err := s.liveOnBus(ctx, s.stack.endpoints.NATSURL)
	if err != nil {
		return err
	}
	fmt.Printf("  median %.2f ms, 99%% %.2f ms\n", got.median, got.tail)
	s.figures = append(s.figures,
		figure{name: "publish call to delivery, 1,000 topics, 50 streams, median", unit: "ms", ours: got.median, target: 2, atMost: true, targetInUnits: true},
		figure{name: "publish call to delivery, 1,000 topics, 50 streams, 99 %", unit: "ms", ours: got.tail, target: 10, atMost: true, targetInUnits: true})
	return nil
}

// liveOnBus starts the roles of streams on a bus and measures with nothing beside.
func (s *suite) liveOnBus(ctx context.Context, bus string) (_ latency, err error) {
	side, err := s.startStreamSide(ctx, bus)
	if err != nil {
		return latency{}, err
	}
	defer func() { err = errors.Join(err, side.stop()) }()
	return s.live(ctx, side.gateway.address, nil)
}

// live measures the latency of streams, with something beside them or nothing.
func (s *suite) live(ctx context.Context, endpoint string, beside bench.Beside) (latency, error) {
	var medians, tails []float64
	for range s.rounds {
		r, err := s.liveTurn(ctx, endpoint, beside)
		if err != nil {
			return latency{}, err
		}
		medians, tails = append(medians, r.median), append(tails, r.tail)
	}
	return latency{median(medians), median(tails)}, nil
}

func (s *suite) liveTurn(ctx context.Context, endpoint string, beside bench.Beside) (latency, error) {
	config := bench.Default(bench.ManyTopics)
	config.Endpoint, config.Warmup, config.Duration, config.Size = endpoint, warmup, s.length, messageBytes
	liveLoad(&config)
	r, err := bench.RunBeside(ctx, config, beside)
	if err != nil {
		return latency{}, err
	}
	if r.Errors > 0 {
		return latency{}, fmt.Errorf("%d calls failed or streams ended, the first with %s", r.Errors, r.FirstError)
	}
	return latency{r.Delivery.P50, r.Delivery.P99}, nil
}

// ratioOf is a figure against one of the same kind; target 0 is none.
func ratioOf(name, against string, ours, base, target float64) figure {
	return figure{name: name, unit: "ms", ours: ours, against: base, againstName: against, ratio: ours / base, target: target, atMost: true}
}
