package main

import (
	"context"
	"fmt"

	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
)

// sweepInterval is the default of XMTP_SWEEP_INTERVAL, in milliseconds.
const sweepInterval = 250

// measureSweep puts the streamer on a bus that carries nothing, so that it hears of
// no envelope: all come by the sweep.
func measureSweep(ctx context.Context, s *suite) error {
	silent, err := natslocal.Start(natslocal.Options{})
	if err != nil {
		return err
	}
	defer silent.Stop()
	got, err := s.liveOnBus(ctx, silent.URL())
	if err != nil {
		return err
	}
	fmt.Printf("  without notices: median %.0f ms, 99%% %.0f ms\n", got.median, got.tail)
	s.figures = append(s.figures,
		figure{name: "publish call to delivery by the sweep, median", unit: "ms", ours: got.median, target: sweepInterval, atMost: true, targetInUnits: true},
		figure{name: "publish call to delivery by the sweep, 99 %", unit: "ms", ours: got.tail})
	return nil
}
