package forward

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
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

// room reserves room for a request that has none yet.
func (h *hold) room(ctx context.Context, client *caller.Caller, request *rpc.Frame) error {
	if request.IsHeld() {
		return nil
	}
	bytes := int64(request.Data.Len())
	if !client.Bodies.TryTake(bytes) {
		if err := client.Bodies.Take(h.patience(ctx), bytes); err != nil {
			return fault.Wrap(fault.Unavailable, err, "the gateway has no memory left for the request; try again later")
		}
	}
	request.Hold(func() { client.Bodies.Give(bytes) })
	return nil
}

// owe reserves room for an answer.
func (h *hold) owe(ctx context.Context, client *caller.Caller, bytes int) (*caller.Answer, error) {
	return client.Owe(ctx, h.patience, bytes)
}

// ready waits until an instance is ready.
func (h *hold) ready(ctx context.Context) error {
	if h.role.up.Load() {
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
