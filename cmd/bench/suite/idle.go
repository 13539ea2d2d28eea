package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// What is held open, and how long its memory is watched.
const (
	idleStreams   = 5_000
	idleTopics    = 10
	idleSettle    = 20 * time.Second // for the collectors to give back what opening took
	idleReadings  = 4
	idleBetween   = time.Minute
	idlePerStream = 60 // kB, the goal
)

// measureIdle opens many streams without traffic, 100 a connection and then one:
// what each takes in both roles, whether that grows, and what a live stream
// notices of it.
func measureIdle(ctx context.Context, s *suite) error {
	for _, perConnection := range []int{100, 1} {
		if err := s.idle(ctx, perConnection); err != nil {
			return fmt.Errorf("%d a connection: %w", perConnection, err)
		}
	}
	return nil
}

func (s *suite) idle(ctx context.Context, perConnection int) (err error) {
	side, err := s.startStreamSide(ctx, s.stack.endpoints.NATSURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, side.stop()) }()
	live := func() (latency, error) { return s.live(ctx, side.gateway.address, nil) }
	quiet, err := live() // also warms both up: their own memory is not the streams'
	if err != nil {
		return err
	}
	time.Sleep(idleSettle)
	streamer, gateway, err := side.resident()
	if err != nil {
		return err
	}
	held := newSubscriptions(ctx)
	defer func() { err = errors.Join(err, held.close()) }()
	if err := held.openIdle(side.gateway.address, perConnection); err != nil {
		return err
	}
	time.Sleep(idleSettle)
	each := func() (float64, error) {
		s, g, err := side.resident()
		perStreamer, perGateway := float64(s-streamer)/idleStreams/1000, float64(g-gateway)/idleStreams/1000
		fmt.Printf("  %d idle streams, %d a connection: %.1f kB each in the streamer, %.1f kB in the gateway (%d and %d MB in all)\n",
			idleStreams, perConnection, perStreamer, perGateway, s>>20, g>>20)
		return perStreamer + perGateway, err
	}
	first, err := each()
	if err != nil {
		return err
	}
	last := first
	for range idleReadings - 1 {
		time.Sleep(idleBetween)
		if last, err = each(); err != nil {
			return err
		}
	}
	beside, err := live()
	if err != nil {
		return err
	}
	fmt.Printf("  live latency: median %.2f ms and 99%% %.2f ms without them, %.2f ms and %.2f ms with them\n",
		quiet.median, quiet.tail, beside.median, beside.tail)
	name := fmt.Sprintf("idle stream of %d, %d a connection", idleStreams, perConnection)
	resident := figure{name: name + ", both roles", unit: "kB", ours: last, atMost: true, targetInUnits: true}
	if perConnection > 1 {
		resident.target = idlePerStream
	}
	s.figures = append(s.figures, resident,
		figure{name: name + ", growth in 3 minutes", unit: "kB", ours: last - first},
		ratioOf(fmt.Sprintf("live median beside idle streams, %d a connection", perConnection), "without", beside.median, quiet.median, 0))
	return nil
}

// openIdle opens the streams, each with topics of its own.
func (s *subscriptions) openIdle(address string, perConnection int) error {
	for i := range idleStreams {
		conn := s.last()
		if i%perConnection == 0 {
			var err error
			if conn, err = s.dial(address); err != nil {
				return err
			}
		}
		if _, err := s.open(conn, quietTopics(i*idleTopics, (i+1)*idleTopics)); err != nil {
			return fmt.Errorf("open idle stream %d: %w", i+1, err)
		}
	}
	return nil
}
