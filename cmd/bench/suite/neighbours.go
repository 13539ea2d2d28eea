package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/xmtp-selfhosted/backend/cmd/bench"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Goals of streams beside one with many topics.
const (
	neighbourRatio = 2.0 // of the 99th percentile against none beside
	appliedWithin  = 3.0 // seconds, for 100,000 topics in one update
)

// measureNeighbours compares what streams notice of one with many topics, theirs
// among them: while it is open, and while it does nothing but join and leave.
func measureNeighbours(ctx context.Context, s *suite) (err error) {
	side, err := s.startStreamSide(ctx, s.stack.endpoints.NATSURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, side.stop()) }()
	for _, many := range []int{10_000, 100_000} {
		if err := s.neighbours(ctx, side.gateway.address, many); err != nil {
			return fmt.Errorf("%d topics: %w", many, err)
		}
	}
	return nil
}

func (s *suite) neighbours(ctx context.Context, address string, many int) error {
	var applied []float64
	open := func(ctx context.Context, topics []topic.Topic) (func() error, error) {
		large, took, err := openLarge(ctx, address, topics, many)
		applied = append(applied, took)
		return large.close, err
	}
	join := func(ctx context.Context, topics []topic.Topic) (func() error, error) {
		return joinAgain(ctx, address, topics, many), nil
	}
	kinds := []struct {
		name   string
		beside bench.Beside
		tails  []float64
		ratios []float64
	}{{name: "nothing"}, {name: "open", beside: open}, {name: "joining and leaving", beside: join}}
	for round := range s.rounds {
		for i := range kinds {
			k := &kinds[i]
			got, err := s.liveTurn(ctx, address, k.beside)
			if err != nil {
				return err
			}
			k.tails = append(k.tails, got.tail)
			k.ratios = append(k.ratios, got.tail/kinds[0].tails[round])
			fmt.Printf("  round %d: median %.2f ms, 99%% %.2f ms with %s beside, ratio %.2f\n", round+1, got.median, got.tail, k.name, k.ratios[round])
		}
	}
	for i := range kinds[1:] {
		k := &kinds[i+1]
		s.figures = append(s.figures, figure{
			name: fmt.Sprintf("99 %% of others, a stream of %d topics %s", many, k.name), unit: "ms", ours: median(slices.Clone(k.tails)),
			against: median(slices.Clone(kinds[0].tails)), againstName: "without", ratio: median(k.ratios), target: neighbourRatio, atMost: true,
		})
	}
	took := figure{name: fmt.Sprintf("Applied for %d topics through the gateway", many), unit: "s", ours: median(applied), atMost: true, targetInUnits: true}
	if many >= 100_000 {
		took.target = appliedWithin
	}
	s.figures = append(s.figures, took)
	return nil
}

// openLarge opens a stream with the topics and others, so many in all, and returns
// the seconds until they were applied.
func openLarge(ctx context.Context, address string, topics []topic.Topic, many int) (*subscriptions, float64, error) {
	large := newSubscriptions(ctx)
	conn, err := large.dial(address)
	if err != nil {
		return large, 0, err
	}
	took, err := large.open(conn, slices.Concat(topics, quietTopics(0, many-len(topics))))
	return large, took.Seconds(), err
}

// joinAgain opens and closes such a stream again and again until end.
func joinAgain(ctx context.Context, address string, topics []topic.Topic, many int) (end func() error) {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		for {
			large, _, err := openLarge(ctx, address, topics, many)
			err = errors.Join(err, large.close())
			if err != nil || ctx.Err() != nil {
				if ctx.Err() != nil {
					err = nil // it was told to end
				}
				ended <- err
				return
			}
		}
	}()
	return func() error {
		stop()
		return <-ended
	}
}
