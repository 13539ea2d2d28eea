package forward

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/connectivity"
)

// The pauses between repeats: the balancer needs a moment to see that an
// instance drains.
const (
	firstPause   = 2 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// hold is the patience of one call. It costs nothing until the call has to wait.
type hold struct {
	role   *Role
	ctx    context.Context //nolint:containedctx // lives as long as the call
	cancel context.CancelFunc
	next   time.Duration
}

// patience is the caller's context, shortened to the hold time from the first
// wait on.
func (h *hold) patience(ctx context.Context) context.Context {
	if h.ctx == nil {
		h.ctx, h.cancel = context.WithTimeout(ctx, h.role.config.Hold)
	}
	return h.ctx
}

func (h *hold) release() {
	if h.cancel != nil {
		h.cancel()
	}
}

// take reserves room for a body.
func (h *hold) take(ctx context.Context, bytes int) (func(), error) {
	if give, ok := h.role.budget.TryTake(ctx, bytes); ok {
		return give, nil
	}
	return h.role.budget.Take(h.patience(ctx), bytes)
}

// ready waits until an instance is ready.
func (h *hold) ready(ctx context.Context) error {
	if h.role.conn.GetState() == connectivity.Ready {
		return nil
	}
	h.role.metrics.GatewayHeldCalls.Add(ctx, 1)
	defer h.role.metrics.GatewayHeldCalls.Add(ctx, -1)
	if err := h.role.AwaitReady(h.patience(ctx)); err != nil {
		return h.role.away(ctx, err)
	}
	return nil
}

// pause waits before the next repeat, a little longer each time. It reports
// whether there is patience left.
func (h *hold) pause(ctx context.Context) bool {
	patience := h.patience(ctx)
	if h.next == 0 {
		h.next = firstPause
	}
	wait := h.next/2 + rand.N(h.next)
	h.next = min(2*h.next, longestPause)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-patience.Done():
		return false
	case <-timer.C:
		return true
	}
}
