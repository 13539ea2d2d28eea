package publisher

import (
	"context"
	"errors"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

// What a request takes, beside its own bytes.
const (
	// bytesPerEnvelope is for one envelope at each step: parsed, as a draft, with its
	// metadata, and in the arrays of a statement.
	bytesPerEnvelope = 1 << 10
	// copiesInCommit are those of the payloads: what came, what was encoded again, the
	// array of the statement, and the connection's buffer.
	copiesInCommit = 4
	// copiesInCheck are what came, and what was encoded again.
	copiesInCheck = 2
)

// memory bounds what all requests take at a time: half of it those that are stored, a
// quarter those that are checked, perhaps for as long as a chain is silent, and a
// quarter those that wait for either. So whoever checks takes nothing from those that
// store, and who stores needs nothing more.
type memory struct{ storing, checking, waiting *budget.Budget }

func newMemory(total int64, metrics *telemetry.Metrics) *memory {
	m := &memory{storing: budget.New(total/2, 0), checking: budget.New(total/4, 0), waiting: budget.New(total/4, 0)}
	metrics.ObserveBudget("requests", m.storing)
	metrics.ObserveBudget("requests_checked", m.checking)
	metrics.ObserveBudget("requests_waiting", m.waiting)
	return m
}

// lease is memory that was taken.
type lease struct {
	holder *budget.Holder
	bytes  int64
}

// end gives the memory back, once.
func (l *lease) end() {
	if l.bytes > 0 {
		l.holder.Give(l.bytes)
		l.bytes = 0
	}
}

func (m *memory) toStore(ctx context.Context, o *request.Outline, deadline time.Time) (lease, error) {
	return m.take(ctx, m.storing, o, int64(o.Wire)*copiesInCommit+int64(o.Envelopes)*bytesPerEnvelope, deadline)
}

func (m *memory) toCheck(ctx context.Context, o *request.Outline, deadline time.Time) (lease, error) {
	return m.take(ctx, m.checking, o, int64(o.Wire)*copiesInCheck+int64(o.Checked)*bytesPerEnvelope, deadline)
}

// take waits for memory until the deadline. A request that takes more than the share
// of one may be stored, beside nothing but small ones.
func (m *memory) take(ctx context.Context, from *budget.Budget, o *request.Outline, bytes int64, deadline time.Time) (lease, error) {
	l := lease{from.Holder(), min(bytes, from.Share())}
	if l.holder.TryTake(l.bytes) { // a context with a deadline costs as much as parsing a short message
		return l, nil
	}
	waits := lease{m.waiting.Holder(), min(int64(o.Wire), m.waiting.Share())}
	if !waits.holder.TryTake(waits.bytes) {
		return lease{}, errNoMemory
	}
	defer waits.end()
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := l.holder.Take(ctx, l.bytes)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, context.Canceled):
		return lease{}, err
	default:
		return lease{}, errNoMemory
	}
}

var errNoMemory = fault.Errorf(fault.Unavailable, "the publisher has no memory left for a request of this size now")
