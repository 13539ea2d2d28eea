package forward

import (
	"context"

	"golang.org/x/sync/semaphore"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Budget bounds the request bodies that are in flight or held, in bytes. Large
// bodies wait in line with small ones, so none starves.
type Budget struct {
	size    int64
	free    *semaphore.Weighted
	metrics *telemetry.Metrics
}

// NewBudget makes a budget of the given bytes.
func NewBudget(bytes int64, metrics *telemetry.Metrics) *Budget {
	return &Budget{size: bytes, free: semaphore.NewWeighted(bytes), metrics: metrics}
}

// Take reserves room for a body until give is called. A body that gets none
// before ctx ends is UNAVAILABLE.
func (b *Budget) Take(ctx context.Context, bytes int) (give func(), err error) {
	if give, ok := b.TryTake(ctx, bytes); ok {
		return give, nil
	}
	weight := b.weight(bytes)
	if err := b.free.Acquire(ctx, weight); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "the gateway has no memory left for the request; try again later")
	}
	return b.taken(ctx, weight), nil
}

// TryTake is Take for whoever cannot wait.
func (b *Budget) TryTake(ctx context.Context, bytes int) (give func(), ok bool) {
	weight := b.weight(bytes)
	if !b.free.TryAcquire(weight) {
		return nil, false
	}
	return b.taken(ctx, weight), true
}

// weight lets a body larger than the whole budget pass alone.
func (b *Budget) weight(bytes int) int64 { return min(int64(bytes), b.size) }

func (b *Budget) taken(ctx context.Context, weight int64) (give func()) {
	b.metrics.GatewayBodyBytes.Add(ctx, weight)
	return func() {
		b.metrics.GatewayBodyBytes.Add(ctx, -weight)
		b.free.Release(weight)
	}
}
