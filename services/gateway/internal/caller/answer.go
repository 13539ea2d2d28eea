package caller

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

// Answer is room for a message on its way to the client. Drop it, or Attach it to
// the message: then it ends when the transport has written the last byte or thrown
// the message away, or when the connection ends.
//
// It is the pool of empty buffers before each buffer of the message, and behind the
// last: a transport frees one after the other as it writes them.
type Answer struct {
	caller *Caller
	bytes  int64
	moved  atomic.Int64 // when the client last took some of it, in nanoseconds
	tick   []byte
	end    []byte

	// The rest is guarded by the mutex of the caller.
	listed     bool
	prev, next *Answer
}

// nothing is the memory of empty buffers: mem.NewBuffer counts the references of
// those only that have some.
var nothing [2048]byte

// Owe takes room for a message of so many bytes. When it has to wait, it does so
// until the context ends that patience makes of ctx.
func (c *Caller) Owe(ctx context.Context, patience func(context.Context) context.Context, bytes int) (*Answer, error) {
	size := int64(bytes)
	if !c.Answers.TryTake(size) {
		if err := c.Answers.Take(patience(ctx), size); err != nil {
			return nil, c.refusal(err, size)
		}
	}
	a := &Answer{caller: c, bytes: size, tick: nothing[:0], end: nothing[:0]}
	now := time.Now().UnixNano()
	a.moved.Store(now)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		c.Answers.Give(size)
		return a, nil
	}
	if c.answers == nil {
		c.moved.Store(now)
	} else {
		c.answers.prev = a
	}
	a.listed, a.next, c.answers = true, c.answers, a
	return a, nil
}

func (c *Caller) refusal(err error, size int64) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(err, budget.ErrTooLarge) || c.Answers.Held()+size > c.budgets.Answers.Share() {
		return fault.Wrap(fault.Exhausted, err, "the client has not taken its earlier answers; take them before asking for more")
	}
	return fault.Wrap(fault.Unavailable, err, "the gateway has no memory left for the answer; try again later")
}

// Attach lets the message carry its room along.
func (a *Answer) Attach(message *rpc.Frame) {
	parts := make(mem.BufferSlice, 0, 2*len(message.Data)+1)
	for _, part := range message.Data {
		parts = append(parts, mem.NewBuffer(&a.tick, a), part)
	}
	parts = append(parts, mem.NewBuffer(&a.end, a))
	message.Data = parts
}

// Drop gives the room back, once.
func (a *Answer) Drop() {
	c := a.caller
	c.mu.Lock()
	defer c.mu.Unlock()
	if !a.listed {
		return
	}
	a.listed = false
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		c.answers = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	}
	c.Answers.Give(a.bytes)
}

// Put implements mem.BufferPool for the empty buffers.
func (a *Answer) Put(buffer *[]byte) {
	now := time.Now().UnixNano()
	a.moved.Store(now)
	a.caller.moved.Store(now)
	if buffer == &a.end {
		a.Drop()
	}
}

// Get implements mem.BufferPool. Nobody asks an answer for memory.
func (a *Answer) Get(size int) *[]byte { return rpc.Buffers().Get(size) }

// Close gives back what the answers hold that nobody will take any more: a
// transport that ends does not free all of them.
func (c *Caller) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for a := c.answers; a != nil; a = a.next {
		a.listed = false
		c.Answers.Give(a.bytes)
	}
	c.answers = nil
}

// movingAnswer is how often the patience one answer may stand still while its client
// takes others.
const movingAnswer = 5

// Stalls reports whether the client has taken nothing of what it is owed for longer
// than patience, or of one answer for several times that.
func (c *Caller) Stalls(now time.Time, patience time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil {
		return false
	}
	if now.UnixNano()-c.moved.Load() > int64(patience) {
		return true
	}
	for a := c.answers; a != nil; a = a.next {
		if now.UnixNano()-a.moved.Load() > movingAnswer*int64(patience) {
			return true
		}
	}
	return false
}

// Wrote notes that the client's connection took so many bytes. Few of them are no
// part of an answer: a client that takes none still takes pings.
func (c *Caller) Wrote(bytes int) {
	if bytes >= leastProgress {
		c.moved.Store(time.Now().UnixNano())
	}
}

const leastProgress = 1 << 10
