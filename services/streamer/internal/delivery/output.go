package delivery

import "slices"

// output is what waits for a session's transport. Frames of a lane are numbered;
// a registration remembers the last frame that holds an envelope of it, so that
// lanes never change the order within a registration.
type output struct {
	control       []*Frame
	live, history lane
	sending       *Frame
	// owed are frames that the transport took and has not written; small are bytes
	// of frames since the last such one.
	owed  []*Frame
	small int
	// Those that wait, and those of the transport.
	frames, bytes int
	// barrier is the last frame that was in the live lane when all history
	// moved there: later history goes behind it.
	barrier uint32
	streak  int // frames taken since the last of history
}

// lane is a queue of numbered frames.
type lane struct {
	frames        []*Frame
	queued, taken uint32 // numbers of the last frame put in and taken out
}

// place is where the last envelope of a registration was queued.
type place struct {
	number  uint32
	history bool
}

// holds says whether the frame still waits in the lane.
func (l *lane) holds(number uint32) bool { return int32(number-l.taken) > 0 }

func (l *lane) push(f *Frame) {
	l.queued++
	f.number = l.queued
	l.frames = append(l.frames, f)
}

func (l *lane) pop() *Frame {
	f := pop(&l.frames)
	l.taken = f.number
	return f
}

// tail returns the last frame if it can take size more bytes.
func (l *lane) tail(size, most int) *Frame {
	if len(l.frames) == 0 {
		return nil
	}
	last := l.frames[len(l.frames)-1]
	if last.Kind != Messages || last.Bytes+size > most {
		return nil
	}
	return last
}

// flush moves all history into the live lane: what is queued there next is sent
// after everything that was queued before.
func (o *output) flush() {
	for _, f := range o.history.frames {
		o.live.push(f)
	}
	o.history.frames = nil
	o.history.taken = o.history.queued
	o.barrier = o.live.queued
}

// take removes the next frame to send, or returns nil.
func (o *output) take(liveFrames int) *Frame {
	if len(o.control) > 0 {
		return pop(&o.control)
	}
	if h := o.history.frames; len(h) > 0 &&
		(len(o.live.frames) == 0 || o.streak >= liveFrames && !o.live.holds(h[0].after)) {
		o.streak = 0
		return o.history.pop()
	}
	if len(o.live.frames) > 0 {
		o.streak++
		return o.live.pop()
	}
	return nil
}

// empty takes everything out but what the transport has.
func (o *output) empty() []*Frame {
	held := slices.Concat(o.control, o.live.frames, o.history.frames)
	owed := o.owed
	if f := o.sending; f != nil && f.Owed && !f.written {
		owed = append(owed, f)
	} else if f != nil {
		held = append(held, f)
	}
	*o = output{owed: owed, frames: len(owed)}
	for _, f := range owed {
		o.bytes += f.Bytes
	}
	return held
}

func pop(queue *[]*Frame) *Frame {
	first := (*queue)[0]
	(*queue)[0] = nil
	*queue = (*queue)[1:]
	if len(*queue) == 0 {
		*queue = nil
	}
	return first
}
