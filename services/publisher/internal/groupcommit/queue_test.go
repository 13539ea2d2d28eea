package groupcommit

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// request is work of a test.
type request struct {
	name        int
	topics      []topic.Topic
	rows, bytes int
	identity    bool
}

func (r *request) AllTopics() []topic.Topic { return r.topics }
func (r *request) Size() (rows, bytes int)  { return r.rows, r.bytes }
func (r *request) HasIdentity() bool        { return r.identity }

func names(items []*item[*request]) (found []int) {
	for _, it := range items {
		found = append(found, it.work.name)
	}
	return found
}

// naive is a queue that walks through all that waits, which is easily seen to keep the
// rules: what cannot start holds back all that came later on its topics.
type naive struct {
	waiting []*item[*request]
	busy    map[topic.Topic]bool
}

func (n *naive) next(k kind, cfg *Config) (group []*item[*request]) {
	rows, bytes, full := 0, 0, false
	held := map[topic.Topic]bool{}
	for _, it := range n.waiting {
		free := !full && it.kind() == k && !slices.ContainsFunc(it.topics(), func(name topic.Topic) bool { return n.busy[name] || held[name] })
		if free && len(group) > 0 {
			first := group[0]
			free = first.retry != alone && it.retry == first.retry && (it.retry != together || slices.Equal(first.topics(), it.topics()))
			if free && (rows+it.rows > cfg.MaxRows || bytes+it.bytes > cfg.MaxBytes) {
				free, full = false, true
			}
		}
		if free {
			group = append(group, it)
			rows, bytes = rows+it.rows, bytes+it.bytes
			continue
		}
		for _, name := range it.topics() {
			held[name] = true
		}
	}
	return group
}

// The lines and the naive queue agree on every transaction, whatever comes, leaves,
// fails and ends in whatever order.
func TestLinesFormTheGroupsOfANaiveQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{MaxRows: 6, MaxBytes: 20}
		c := New(cfg, func(context.Context, []*request, bool) error { return nil })
		model := naive{busy: map[topic.Topic]bool{}}
		var flights []*flight[*request]
		arrived := 0
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0, 1, 2: // one comes
				arrived++
				it := newItem(&request{
					name: arrived, rows: rapid.IntRange(1, 8).Draw(t, "rows"), bytes: rapid.IntRange(0, 8).Draw(t, "bytes"),
					identity: rapid.IntRange(0, 3).Draw(t, "identity") == 0,
					topics:   rapid.SliceOfNDistinct(rapid.SampledFrom([]topic.Topic{"a", "b", "c", "d", "e"}), 1, 3, rapid.ID).Draw(t, "topics"),
				}, time.Now())
				slices.Sort(it.work.topics)
				c.queue.add(it)
				model.waiting = append(model.waiting, it)
			case 3: // a transaction begins
				k := kind(rapid.IntRange(0, int(kinds)-1).Draw(t, "kind"))
				expected := model.next(k, &cfg)
				f := c.next(k)
				if f == nil {
					require.Empty(t, names(expected))
					continue
				}
				require.Equal(t, names(expected), names(f.group))
				for _, it := range f.group {
					model.waiting = slices.DeleteFunc(model.waiting, func(other *item[*request]) bool { return other == it })
					for _, name := range it.topics() {
						model.busy[name] = true
					}
				}
				flights = append(flights, f)
			case 4: // one ends, and some of it runs again
				if len(flights) == 0 {
					continue
				}
				at := rapid.IntRange(0, len(flights)-1).Draw(t, "ends")
				f := flights[at]
				flights = slices.Delete(flights, at, at+1)
				again := rapid.SampledFrom([]retry{shared, together, alone}).Draw(t, "again")
				for _, it := range slices.Backward(f.group) {
					for _, name := range it.topics() {
						delete(model.busy, name)
					}
					if again != shared {
						it.retry = again
						c.queue.putBack(it)
						model.waiting = slices.Insert(model.waiting, 0, it)
					}
				}
				slices.SortFunc(model.waiting, func(a, b *item[*request]) int { return int(a.order) - int(b.order) })
				c.queue.release(f)
			case 5: // one gives up
				if len(model.waiting) == 0 {
					continue
				}
				at := rapid.IntRange(0, len(model.waiting)-1).Draw(t, "gives up")
				c.queue.remove(model.waiting[at])
				model.waiting = slices.Delete(model.waiting, at, at+1)
			}
			rows := 0
			for _, it := range model.waiting {
				rows += it.rows
			}
			require.Equal(t, len(model.waiting), c.queue.len)
			require.Equal(t, rows, c.queue.rows)
		}
		// All is served in the end, and nothing of it stays.
		for _, f := range flights {
			c.queue.release(f)
		}
		for c.queue.len > 0 {
			for k := range kinds {
				if f := c.next(k); f != nil {
					c.queue.release(f)
				}
			}
		}
		require.Empty(t, c.queue.lines)
	})
}

// crowd is a committer with one transaction in flight and n requests of as many topics
// each that wait.
func crowd(n, topics int, topicOf func(request, i int) string) (*Committer[*request], *flight[*request]) {
	c := New(Config{MaxInFlight: 1, MaxRows: 256, MaxBytes: 1 << 20, MaxWaiting: n + 1}, func(context.Context, []*request, bool) error { return nil })
	var f *flight[*request]
	for i := range n + 1 {
		r := &request{name: i, rows: topics, bytes: topics}
		for j := range topics {
			r.topics = append(r.topics, topic.Topic(topicOf(i, j)))
		}
		c.queue.add(newItem(r, time.Now()))
		if f == nil {
			f = c.next(messages)
		}
	}
	return c, f
}

// crowds are who waits for whom.
var crowds = map[string]func(request, i int) string{
	"all wait for the same topics":         func(_, i int) string { return fmt.Sprint(i) },
	"nobody waits for another":             func(r, i int) string { return fmt.Sprint(r, " ", i) },
	"each waits for those just before":     func(r, i int) string { return fmt.Sprint(r*100 + i) },
	"all wait for one and nothing besides": func(r, i int) string { return fmt.Sprint(min(i, 1)*r, " ", i) },
}

// What the end of a transaction and the beginning of the next cost is by their own
// topics, however many requests wait with however many.
func TestTheQueueCostsNoMoreWhenMoreWait(t *testing.T) {
	const topics = 1000
	for name, topicOf := range crowds {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{2, 400} {
				c, f := crowd(n, topics, topicOf)
				before := c.queue.steps
				c.queue.release(f)
				next := c.next(messages)
				require.Equal(t, []int{1}, names(next.group))
				// The lines of one are released, the lines of the next are taken and sealed.
				require.LessOrEqual(t, c.queue.steps-before, 3*topics, "%d wait", n)
				before = c.queue.steps
				c.queue.remove(c.queue.lastOf(topic.Topic(topicOf(n, topics-1))))
				require.LessOrEqual(t, c.queue.steps-before, topics, "one of %d gives up", n)
			}
		})
	}
}

func (q *queue[W]) lastOf(name topic.Topic) *item[W] { return q.lines[name].last.item }

// The work of the queue for one transaction while 400 requests of 1,000 topics wait.
func BenchmarkTransactionBesideACrowd(b *testing.B) {
	for name, topicOf := range crowds {
		b.Run(name, func(b *testing.B) {
			c, f := crowd(400, 1000, topicOf)
			for b.Loop() {
				c.queue.release(f)
				done := f.group[0]
				f = c.next(messages)
				c.queue.add(newItem(done.work, time.Now()))
			}
		})
	}
}
