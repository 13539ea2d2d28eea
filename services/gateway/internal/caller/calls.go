package caller

import (
	"strings"
	"sync/atomic"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// Kind is what a call costs: a short one, or one that may stay open for days.
type Kind int

// The kinds of calls, each with a bound of its own.
const (
	Unary Kind = iota
	Stream
	// Health is the calls of probes, which are served on a gateway that is full.
	Health
	kinds
)

// maxHealth bounds the calls of probes: many more than there are probes.
const maxHealth = 1000

// KindOf is the kind of a method.
func KindOf(fullMethod string, streams bool) Kind {
	switch {
	case strings.HasPrefix(fullMethod, "/grpc.health.v1.Health/"):
		return Health
	case streams:
		return Stream
	default:
		return Unary
	}
}

// Calls bounds the calls that are in progress in the process, whatever protocol they
// came by.
type Calls struct {
	max [kinds]int64
	now [kinds]atomic.Int64
	// oneAddress says that all clients come from one address.
	oneAddress bool
}

// NewCalls makes the bound of so many unary calls and open streams. oneAddress is for
// gateways whose clients all come from one address.
func NewCalls(unary, streams int, oneAddress bool) *Calls {
	return &Calls{max: [kinds]int64{Unary: int64(unary), Stream: int64(streams), Health: maxHealth}, oneAddress: oneAddress}
}

// Who has many calls gets no more when few are free: a connection one in part of
// what is free beyond its first few, and an address addressPart times that, which
// leaves a quarter of all calls to the others. On a gateway with room nobody meets
// these bounds.
const (
	few         = 4
	part        = 16
	addressPart = 3
)

// Begin counts a call of the caller, whose end is to be told by End. It refuses the
// call when there are too many.
func (c *Calls) Begin(caller *Caller, kind Kind) error {
	free := c.max[kind] - c.now[kind].Add(1) // beside this one
	own, address := caller.progress[kind].Add(1), caller.address.progress[kind].Add(1)
	var err error
	switch {
	case free < 0:
		err = fault.Errorf(fault.Unavailable, "the gateway has as many calls in progress as it can serve; try again later")
	case own > few && own > free/part:
		err = fault.Errorf(fault.Exhausted, "the gateway is almost full, and this connection has %d calls in progress; let some of them end first", own-1)
	case !c.oneAddress && address > few+addressPart*free:
		err = fault.Errorf(fault.Exhausted, "the gateway is almost full, and this address has %d calls in progress; let some of them end first", address-1)
	}
	if err != nil {
		c.End(caller, kind)
	}
	return err
}

// End takes back what Begin counted.
func (c *Calls) End(caller *Caller, kind Kind) {
	caller.progress[kind].Add(-1)
	caller.address.progress[kind].Add(-1)
	c.now[kind].Add(-1)
}
