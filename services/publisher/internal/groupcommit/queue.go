package groupcommit

import (
	"container/heap"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// retry says in what company work runs.
type retry uint8

const (
	shared   retry = iota // the first time: with anybody
	together              // again, with work on the same topics
	alone
)

// kind is what the requests of a transaction have in common.
type kind uint8

const (
	messages kind = iota
	updates       // at least one identity update in each request
	messagesAgain
	updatesAgain
	kinds
)

func (k kind) identity() bool { return k == updates || k == updatesAgain }
func (k kind) again() bool    { return k >= messagesAgain }

// item is work on its way. All fields but done and err are guarded by the mutex of
// the committer.
type item[W Work] struct {
	work        W
	rows, bytes int
	deadline    time.Time
	retry       retry
	// failure is that of the first attempt, if there was one.
	failure error
	done    chan struct{}
	err     error // set before done is closed

	// order is that of arrival.
	order uint64
	// waits says that the item is in the queue.
	waits bool
	// places has the item's place in the line of each of its topics, and blocked counts
	// those lines in which it may not be next.
	places  []place[W]
	one     [1]place[W] // of most items
	blocked int
	// at is where the item is among those that are ready, or -1.
	at int
}

func newItem[W Work](work W, deadline time.Time) *item[W] {
	it := &item[W]{work: work, deadline: deadline, done: make(chan struct{}), at: -1}
	it.rows, it.bytes = work.Size()
	return it
}

func (it *item[W]) topics() []topic.Topic { return it.work.AllTopics() }

func (it *item[W]) kind() kind {
	k := messages
	if it.work.HasIdentity() {
		k = updates
	}
	if it.retry != shared {
		k += messagesAgain
	}
	return k
}

// line is who waits for a topic, in the order of arrival.
type line[W Work] struct {
	name topic.Topic
	// owner is the transaction that has the topic, if one does.
	owner       *flight[W]
	first, last *place[W]
}

// place is an item's place in a line.
type place[W Work] struct {
	item           *item[W]
	line           *line[W]
	before, behind *place[W]
}

// queue is all that waits. Whoever is first in the lines of all its topics, none of
// which a transaction has, is ready. So no two that are ready share a topic, and
// nothing is overtaken for ever.
type queue[W Work] struct {
	lines map[topic.Topic]*line[W]
	spare []*line[W]
	ready [kinds]ready[W]
	// len and rows are of all items that wait.
	len, rows int
	arrived   uint64
	// steps counts the places that were looked at, for tests of what the queue costs.
	steps int
}

// maxSpare bounds the lines that are kept for the next topics.
const maxSpare = 256

func newQueue[W Work]() queue[W] { return queue[W]{lines: map[topic.Topic]*line[W]{}} }

// add puts an item at the end of its lines.
func (q *queue[W]) add(it *item[W]) {
	q.arrived++
	it.order = q.arrived
	names := it.topics()
	if it.places = it.one[:]; len(names) != 1 {
		it.places = make([]place[W], len(names))
	}
	for i, name := range names {
		l := q.lineOf(name)
		p := &it.places[i]
		p.item, p.line, p.before = it, l, l.last
		if l.last != nil {
			l.last.behind = p
		} else {
			l.first = p
		}
		l.last = p
		if l.owner != nil || l.first != p {
			it.blocked++
		}
	}
	q.enter(it)
}

func (q *queue[W]) lineOf(name topic.Topic) *line[W] {
	l := q.lines[name]
	if l != nil {
		return l
	}
	if n := len(q.spare); n > 0 {
		l, q.spare = q.spare[n-1], q.spare[:n-1]
	} else {
		l = &line[W]{}
	}
	l.name = name
	q.lines[name] = l
	return l
}

// putBack puts an item of a transaction, which still has the topics, at the front of
// its lines.
func (q *queue[W]) putBack(it *item[W]) {
	for i := range it.places {
		p := &it.places[i]
		p.before, p.behind = nil, p.line.first
		if p.behind != nil {
			p.behind.before = p
		} else {
			p.line.last = p
		}
		p.line.first = p
	}
	it.blocked = len(it.places)
	q.enter(it)
}

func (q *queue[W]) enter(it *item[W]) {
	q.steps += len(it.places)
	it.waits = true
	q.len++
	q.rows += it.rows
	q.list(it)
}

func (q *queue[W]) leave(it *item[W]) {
	q.unlist(it)
	it.waits = false
	q.len--
	q.rows -= it.rows
}

// unblock lets the first of a line be next in it.
func (q *queue[W]) unblock(l *line[W]) {
	q.steps++
	if l.first != nil {
		l.first.item.blocked--
		q.list(l.first.item)
	}
}

// block keeps the first of a line from being next in it.
func (q *queue[W]) block(l *line[W]) {
	q.steps++
	if l.first != nil {
		l.first.item.blocked++
		q.unlist(l.first.item)
	}
}

func (q *queue[W]) list(it *item[W]) {
	if it.blocked == 0 {
		heap.Push(&q.ready[it.kind()], it)
	}
}

func (q *queue[W]) unlist(it *item[W]) {
	if it.at >= 0 {
		heap.Remove(&q.ready[it.kind()], it.at)
	}
}

// oldest is the first that is ready, or may join the transaction that is forming, or nil.
func (q *queue[W]) oldest(k kind) *item[W] {
	if len(q.ready[k]) == 0 {
		return nil
	}
	return q.ready[k][0]
}

// behind is who is next, in the first line of an item that was taken, if it may join.
func (q *queue[W]) behind(taken *item[W]) *item[W] {
	next := taken.places[0].line.first
	if next == nil || next.item.blocked > 0 {
		return nil
	}
	return next.item
}

// take moves an item that is ready into a transaction that is forming. Those behind
// it may join it.
func (q *queue[W]) take(it *item[W], f *flight[W]) {
	f.group = append(f.group, it)
	f.rows, f.bytes = f.rows+it.rows, f.bytes+it.bytes
	q.leave(it)
	for i := range it.places {
		l := it.places[i].line
		if l.owner == nil {
			l.owner = f
			f.lines = append(f.lines, l)
		}
		l.unlink(&it.places[i])
		q.unblock(l)
	}
}

// seal blocks those who did not join a transaction and wait for its topics.
func (q *queue[W]) seal(f *flight[W]) {
	for _, l := range f.lines {
		q.block(l)
	}
}

// release gives the topics of a transaction back.
func (q *queue[W]) release(f *flight[W]) {
	for _, l := range f.lines {
		l.owner = nil
		q.unblock(l)
		q.forget(l)
	}
}

// remove takes out an item whose caller does not wait any more.
func (q *queue[W]) remove(it *item[W]) {
	q.leave(it)
	for i := range it.places {
		p := &it.places[i]
		wasFirst := p.line.first == p
		p.line.unlink(p)
		if wasFirst && p.line.owner == nil {
			q.unblock(p.line)
		}
		q.forget(p.line)
	}
}

// drain takes out all that wait.
func (q *queue[W]) drain(do func(*item[W])) {
	for _, l := range q.lines {
		for l.first != nil {
			it := l.first.item
			q.remove(it)
			do(it)
		}
	}
}

// forget drops a line that nobody waits in and nobody has.
func (q *queue[W]) forget(l *line[W]) {
	if l.owner != nil || l.first != nil {
		return
	}
	delete(q.lines, l.name)
	if l.name = ""; len(q.spare) < maxSpare {
		q.spare = append(q.spare, l)
	}
}

func (l *line[W]) unlink(p *place[W]) {
	if p.before != nil {
		p.before.behind = p.behind
	} else {
		l.first = p.behind
	}
	if p.behind != nil {
		p.behind.before = p.before
	} else {
		l.last = p.before
	}
	p.before, p.behind = nil, nil
}

// ready is a heap of items that are not blocked, the oldest first.
type ready[W Work] []*item[W]

func (r ready[W]) Len() int           { return len(r) }
func (r ready[W]) Less(i, j int) bool { return r[i].order < r[j].order }

func (r ready[W]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].at, r[j].at = i, j
}

// Push implements heap.Interface.
func (r *ready[W]) Push(x any) {
	it, _ := x.(*item[W])
	it.at = len(*r)
	*r = append(*r, it)
}

// Pop implements heap.Interface.
func (r *ready[W]) Pop() any {
	last := len(*r) - 1
	it := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	it.at = -1
	return it
}
