// Package budget bounds the bytes that a process holds on behalf of its callers:
// messages that arrive, what they decode to, histories, pages, answers that are not
// taken yet. It is what invariant I9 rests on: whatever clients send or refuse to
// read, a role stays within the memory that its configuration says.
//
// A budget is shared by holders, one for each caller (a connection or a request),
// none of which may have more than a share of it. Small amounts have a part of the
// budget to themselves and never wait behind large ones; large ones are served in
// the order in which they came, and small ones cannot starve them. Whoever is at its
// share waits for its own bytes and holds up nobody else.
package budget

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// ErrTooLarge is an amount that the budget could never give: more than the share of
// one holder.
var ErrTooLarge = errors.New("the amount is larger than the share of one holder")

// One part in reservedPart of a budget is for small amounts alone: those of at most
// largestSmall bytes, or of one part in smallPart of a budget that is tiny.
const (
	reservedPart = 8
	largestSmall = 64 << 10
	smallPart    = 256
)

// Budget is a bounded number of bytes. It is safe for concurrent use.
type Budget struct {
	total, share, reserved, smallest int64

	mu           sync.Mutex
	small, large int64      // bytes taken
	smallLine    *list.List // of *waiter, each within its holder's share
	largeLine    *list.List
}

// New makes a budget of total bytes, of which one holder may have share. A share is
// at most what is not reserved for small amounts; a larger one, or 0, means that.
func New(total, share int64) *Budget {
	b := &Budget{
		total: total, reserved: total / reservedPart, smallest: min(largestSmall, total/smallPart),
		smallLine: list.New(), largeLine: list.New(),
	}
	b.share = total - b.reserved
	if share > 0 {
		b.share = min(b.share, share)
	}
	return b
}

// Total is the size of the budget in bytes.
func (b *Budget) Total() int64 { return b.total }

// Share is the most that one holder may have, in bytes.
func (b *Budget) Share() int64 { return b.share }

// Used is how many bytes are taken now.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.small + b.large
}

// Holder is one caller's part of a budget. It needs no end: what it has taken has
// to be given back. It is safe for concurrent use.
type Holder struct {
	budget *Budget
	// All below is guarded by the mutex of the budget.
	claimed int64      // bytes taken, and asked for in one of the lines
	line    *list.List // of *waiter, for bytes beyond the share; nil until one waits
}

// waiter is an amount that has to wait.
type waiter struct {
	holder  *Holder
	bytes   int64
	granted chan struct{} // closed once the bytes are taken
	in      *list.List    // the line it stands in, nil once granted
	place   *list.Element
}

// Holder makes a holder that has nothing yet.
func (b *Budget) Holder() *Holder { return &Holder{budget: b} }

// Held is how many bytes the holder has taken or waits for within its share.
func (h *Holder) Held() int64 {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	return h.claimed
}

// TryTake takes bytes if nobody has to wait for them. It reports whether it did.
func (h *Holder) TryTake(bytes int64) bool {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	return h.tryTake(bytes)
}

func (h *Holder) tryTake(bytes int64) bool {
	b := h.budget
	if h.isWaiting() || h.claimed+bytes > b.share || b.lineOf(bytes).Len() > 0 || !b.fits(bytes) {
		return false
	}
	h.claimed += bytes
	b.count(bytes, 1)
	return true
}

// Take takes bytes, and waits for them until ctx ends, whose error it returns then.
// An amount that could never be had is ErrTooLarge at once.
func (h *Holder) Take(ctx context.Context, bytes int64) error {
	b := h.budget
	if bytes > b.share {
		return ErrTooLarge
	}
	b.mu.Lock()
	if h.tryTake(bytes) {
		b.mu.Unlock()
		return nil
	}
	w := &waiter{holder: h, bytes: bytes, granted: make(chan struct{})}
	if h.isWaiting() || h.claimed+bytes > b.share {
		if h.line == nil {
			h.line = list.New()
		}
		w.stand(h.line)
	} else {
		h.claimed += bytes
		w.stand(b.lineOf(bytes))
	}
	b.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch w.in {
	case nil: // granted in the meantime
		h.give(bytes)
	case h.line:
		w.leave()
		h.advance() // a smaller one behind it may fit
	default:
		w.leave()
		h.claimed -= bytes
		h.advance()
	}
	b.serve()
	return ctx.Err()
}

// Charge counts bytes that are there already and cannot be refused. The budget, and
// the holder's share, may be exceeded by it; then nothing else is given out until it
// has come back.
func (h *Holder) Charge(bytes int64) {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	h.claimed += bytes
	b.count(bytes, 1)
}

// Give gives back what one TryTake, Take or Charge of as many bytes took.
func (h *Holder) Give(bytes int64) {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	h.give(bytes)
	b.serve()
}

func (h *Holder) give(bytes int64) {
	h.claimed -= bytes
	h.budget.count(bytes, -1)
	h.advance()
}

func (h *Holder) isWaiting() bool { return h.line != nil && h.line.Len() > 0 }

// advance lets those of the holder's own line that fit its share stand in the
// budget's lines.
func (h *Holder) advance() {
	for h.isWaiting() {
		w := waiterAt(h.line.Front())
		if h.claimed+w.bytes > h.budget.share {
			return
		}
		w.leave()
		h.claimed += w.bytes
		w.stand(h.budget.lineOf(w.bytes))
	}
}

func (w *waiter) stand(line *list.List) { w.in, w.place = line, line.PushBack(w) }

func (w *waiter) leave() {
	w.in.Remove(w.place)
	w.in, w.place = nil, nil
}

func waiterAt(place *list.Element) *waiter {
	w, _ := place.Value.(*waiter)
	return w
}

func (b *Budget) isSmall(bytes int64) bool { return bytes <= b.smallest }

func (b *Budget) lineOf(bytes int64) *list.List {
	if b.isSmall(bytes) {
		return b.smallLine
	}
	return b.largeLine
}

func (b *Budget) count(bytes, sign int64) {
	if b.isSmall(bytes) {
		b.small += sign * bytes
	} else {
		b.large += sign * bytes
	}
}

// fits reports whether an amount can be taken now. Small amounts fill what is
// reserved for them first. What they have beyond that they do not add to while a
// large amount waits.
func (b *Budget) fits(bytes int64) bool {
	if !b.isSmall(bytes) {
		return b.large+max(0, b.small-b.reserved)+bytes <= b.total-b.reserved
	}
	return b.small+bytes <= b.reserved || b.largeLine.Len() == 0 && b.small+b.large+bytes <= b.total
}

// serve grants what fits now, in the order of each line.
func (b *Budget) serve() {
	for _, line := range []*list.List{b.largeLine, b.smallLine} {
		for line.Len() > 0 {
			w := waiterAt(line.Front())
			if !b.fits(w.bytes) {
				break
			}
			w.leave()
			b.count(w.bytes, 1)
			close(w.granted)
		}
	}
}
