// Package caller is what the gateway knows of the client behind one connection: what
// it holds of the budgets, how many of its calls are in progress, and which answers
// it has not taken yet.
package caller

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
)

// Budgets are what all callers of a gateway share.
type Budgets struct {
	// Bodies bounds the requests that arrive or are held, in bytes.
	Bodies *budget.Budget
	// Answers bounds the answers that are on their way to clients, in bytes.
	Answers *budget.Budget
}

// Caller is the client behind one connection. It is safe for concurrent use.
type Caller struct {
	// Bodies and Answers are its parts of the budgets.
	Bodies, Answers *budget.Holder

	budgets   Budgets
	address   *Address
	end       func()
	progress  [kinds]atomic.Int64 // calls in progress
	cancelled bucket
	moved     atomic.Int64 // when it last took something that it is owed, in nanoseconds

	mu      sync.Mutex
	over    bool
	answers *Answer // that it has not taken, the newest first
}

// Address is what the callers of one network address have in progress together.
type Address struct{ progress [kinds]atomic.Int64 }

// New makes a caller that has nothing yet. end closes its connection.
func (b Budgets) New(address *Address, end func()) *Caller {
	return &Caller{budgets: b, Bodies: b.Bodies.Holder(), Answers: b.Answers.Holder(), address: address, end: end}
}

// Addr is the address of a caller's connection. It carries the caller to whoever
// sees only the address, as grpc-go's handlers do.
type Addr struct {
	net.Addr

	Caller *Caller
}

type key struct{}

// With is a context of the caller.
func With(ctx context.Context, c *Caller) context.Context { return context.WithValue(ctx, key{}, c) }

// From is the caller whose call or connection the context belongs to. One that is
// nobody's has a caller of its own.
func (b Budgets) From(ctx context.Context) *Caller {
	if known, ok := peer.FromContext(ctx); ok {
		if address, ok := known.Addr.(Addr); ok {
			return address.Caller
		}
	}
	if found, ok := ctx.Value(key{}).(*Caller); ok {
		return found
	}
	return b.New(&Address{}, func() {})
}

// The rate at which a connection may give up calls that are in progress: enough for
// a proxy that carries many clients, and far below what it costs to begin calls only
// to reset them.
const (
	cancelledAtOnce    = 1000
	cancelledPerSecond = 200
)

// Cancelled counts a call that the client gave up, and closes the connection of one
// that does little else.
func (c *Caller) Cancelled() {
	if !c.cancelled.take(time.Now()) {
		c.end()
	}
}

// bucket has room for cancelledAtOnce, and for cancelledPerSecond more.
type bucket struct {
	mu   sync.Mutex
	used float64
	last time.Time
}

func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = max(0, b.used-now.Sub(b.last).Seconds()*cancelledPerSecond) + 1
	b.last = now
	return b.used <= cancelledAtOnce
}
