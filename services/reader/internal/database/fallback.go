package database

import (
	"context"
	"errors"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// Fallback reads from one set of servers, and from another while none of the first
// can be reached: a few reads at a time, so that the second can do its own work.
type Fallback struct {
	first, then *Set
	places      chan struct{}
	patience    time.Duration
}

// NewFallback lets so many reads at a time go to then. One more waits for a place as
// long as patience.
func NewFallback(first, then *Set, places int, patience time.Duration) *Fallback {
	return &Fallback{first: first, then: then, places: make(chan struct{}, places), patience: patience}
}

// Read is as that of a Set. It is Unavailable when both are away, or no place became
// free.
func (f *Fallback) Read(ctx context.Context, read func(context.Context, *store.Pool) error) error {
	err := f.first.Read(ctx, read)
	// Servers that are busy get no help: the other would soon be busy, too.
	if err == nil || fault.KindOf(err) != fault.Unavailable || errors.Is(err, store.ErrBusy) || ctx.Err() != nil {
		return err
	}
	patience := time.NewTimer(f.patience)
	defer patience.Stop()
	select {
	case f.places <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
		return fault.Wrap(fault.Unavailable, store.ErrBusy, "no replica is reachable, and no read of the primary became free within %v", f.patience)
	}
	defer func() { <-f.places }()
	return f.then.Read(ctx, read)
}
