package caller

import (
	"sync/atomic"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// Kind is what a call costs: a short one, or one that may stay open for days.
type Kind int

// The kinds of calls, each with a bound of its own.
const (
	Unary Kind = iota
	Stream
	kinds
)

// Calls bounds the calls that are in progress in the process.
type Calls struct {
	max [kinds]int64
	now [kinds]atomic.Int64
}

// NewCalls makes the bound of so many unary calls and open streams.
func NewCalls(unary, streams int) *Calls {
	return &Calls{max: [kinds]int64{int64(unary), int64(streams)}}
}

// A connection with fewer calls than few is served as long as anything is free. One
// with more gets no more than one in part of what is free: nothing that an ordinary
// client meets on a gateway with room, and little on one that is almost full.
const (
	few  = 4
	part = 16
)

// Begin counts a call of the caller, whose end is to be told by End. It refuses the
// call when there are too many.
func (c *Calls) Begin(caller *Caller, kind Kind) error {
	own := caller.progress[kind].Add(1)
	free := c.max[kind] - c.now[kind].Add(1) // beside this one
	if free >= 0 && (own <= few || own <= free/part) {
		return nil
	}
	c.End(caller, kind)
	if free < 0 {
		return fault.Errorf(fault.Unavailable, "the gateway has as many calls in progress as it can serve; try again later")
	}
	return fault.Errorf(fault.Exhausted, "the gateway has many calls in progress, and %d of them are of this connection; let some of them end first", own-1)
}

// End takes back what Begin counted.
func (c *Calls) End(caller *Caller, kind Kind) {
	caller.progress[kind].Add(-1)
	c.now[kind].Add(-1)
}
