package stream

import (
	"container/heap"
	"context"
	"sync"
)

// turns shares a number of places at the database among sessions, fairly by the
// topics that they read there: who has read little goes before who has read much,
// however many reads wait. (Start-time fair queueing: each read gets a number that
// rises by its topics with each read of its session, and the lowest goes first.)
type turns struct {
	mu      sync.Mutex
	free    int
	now     uint64 // number at which the last read began
	waiting line
}

// account is what a session has read.
type account struct{ next uint64 }

type turn struct {
	begin, end uint64
	place      int // in the line, -1 once granted
	granted    chan struct{}
}

func newTurns(places int) *turns { return &turns{free: places} }

// take waits for a place for a read of so many topics, until ctx ends or the channel
// is closed. It says whether there is one, to be given back by give.
func (t *turns) take(ctx context.Context, ended <-chan struct{}, a *account, topics int) bool {
	t.mu.Lock()
	w := &turn{begin: max(t.now, a.next), granted: make(chan struct{})}
	w.end = w.begin + uint64(topics)
	a.next = w.end
	heap.Push(&t.waiting, w)
	t.grant()
	t.mu.Unlock()
	select {
	case <-w.granted:
		return true
	case <-ended:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.place < 0 {
		t.free++
		t.grant()
	} else {
		heap.Remove(&t.waiting, w.place)
	}
	return false
}

func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	t.grant()
}

func (t *turns) grant() {
	for t.free > 0 && len(t.waiting) > 0 {
		w, _ := heap.Pop(&t.waiting).(*turn)
		t.free--
		t.now = max(t.now, w.begin)
		close(w.granted)
	}
}

// line is a heap of turns by where they end.
type line []*turn

func (l line) Len() int           { return len(l) }
func (l line) Less(i, j int) bool { return l[i].end < l[j].end }
func (l line) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i, j
}

// Push implements heap.Interface.
func (l *line) Push(x any) {
	w, _ := x.(*turn)
	w.place = len(*l)
	*l = append(*l, w)
}

// Pop implements heap.Interface.
func (l *line) Pop() any {
	last := len(*l) - 1
	w := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	w.place = -1
	return w
}
