package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

const (
	// smallestPiece is more than what grpc-go frees without a word.
	smallestPiece = 2 << 10
	// largestPiece is how long the pieces of a long answer are. They are given back
	// one by one, and that one is taken shows that an answer does not stand still.
	largestPiece = 256 << 10
)

// Rooms is where answers get room for their bytes, from before they are fetched until
// they have left.
type Rooms struct {
	Budget *budget.Budget
	// Patience is how long an answer waits for room.
	Patience time.Duration
}

// Answer begins an answer that has taken nothing yet.
func (r Rooms) Answer() *Answer { return &Answer{owed: newOwed(r.Budget), patience: r.Patience} }

// Answer is an answer that is put together within a budget: room for it is taken
// before its parts are fetched, and given back as they leave the process. It is
// either made a frame or dropped. It is not safe for concurrent use.
type Answer struct {
	owed     *owed
	patience time.Duration
	pieces   []*[]byte
	length   int
	room     int // in the last piece
	expected int // bytes that are still to come, as far as known
}

// TryTake takes room in bytes, if nobody has to wait for it. It reports whether it
// did. Room that was taken before is given back first.
func (a *Answer) TryTake(bytes int64) bool {
	a.owed.charge(0)
	if !a.owed.holder.TryTake(bytes) {
		return false
	}
	a.owed.charged = bytes
	return true
}

// Take is TryTake, and waits for the room until ctx ends, or as long as the answer has
// patience; then it is Unavailable. Room that was taken before is given back first: whoever
// waits holds nothing that others wait for.
func (a *Answer) Take(ctx context.Context, bytes int64) error {
	a.owed.charge(0)
	waiting, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	err := a.owed.holder.Take(waiting, bytes)
	switch {
	case err == nil:
		a.owed.charged = bytes
		return nil
	case errors.Is(err, budget.ErrTooLarge):
		return fault.Wrap(fault.Broken, err, "internal error")
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fault.Errorf(fault.Unavailable, "the server is busy with long answers, there was no room for this one within %v", a.patience)
}

// Len is how many bytes were written.
func (a *Answer) Len() int { return a.length }

// Expect says how many bytes are about to be written, so that the pieces fit.
func (a *Answer) Expect(bytes int) { a.expected = bytes }

// Write appends a copy of p. It never fails.
func (a *Answer) Write(p []byte) {
	a.length += len(p)
	for len(p) > 0 {
		if a.room == 0 {
			a.grow(max(len(p), a.expected))
		}
		last := a.pieces[len(a.pieces)-1]
		n := min(len(p), a.room)
		*last = append(*last, p[:n]...)
		p, a.room, a.expected = p[n:], a.room-n, a.expected-n
	}
}

func (a *Answer) grow(bytes int) {
	piece := used.Get(min(max(bytes, smallestPiece), largestPiece))
	*piece = (*piece)[:0]
	a.pieces, a.room = append(a.pieces, piece), cap(*piece)
}

// Reset forgets what was written, not what was taken.
func (a *Answer) Reset() {
	for _, piece := range a.pieces {
		used.Put(piece)
	}
	a.pieces, a.length, a.room, a.expected = nil, 0, 0, 0
}

// Drop forgets the answer and gives back its room.
func (a *Answer) Drop() {
	a.Reset()
	a.owed.giveUp()
}

// Frame ends the answer. What was taken beyond its length is given back; the rest
// is when the frame is sent or freed.
func (a *Answer) Frame() *Frame {
	o, frame := a.owed, &Frame{owed: a.owed}
	for _, piece := range a.pieces {
		o.bytes += int64(cap(*piece))
		frame.Data = append(frame.Data, mem.NewBuffer(piece, pool{owed: o}))
	}
	if o.bytes == 0 {
		o.giveUp()
	}
	o.charge(o.bytes)
	a.pieces = nil
	return frame
}
