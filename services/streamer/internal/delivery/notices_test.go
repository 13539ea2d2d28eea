package delivery

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Notices that were dropped for lack of room and notices that have served are
// counted once each.
func TestNoticesAreForgottenOnce(t *testing.T) {
	const size, room, sent = 100, 1500, 4000
	config := testConfig()
	config.NoticeBytes = size * room
	r := newRig(t, config)
	s := r.open()
	hot, other := modelTopic(0), modelTopic(1)
	r.store(hot, size)
	r.add(s, hot, other)
	for range 3 {
		// While the page is on its way, far more notices come than there is room for.
		for range sent {
			r.publish(hot, size)
		}
		r.requireCounted()
		for len(r.fetches) > 0 || r.next(s) != nil {
			if len(r.fetches) > 0 {
				r.page()
			}
		}
		r.publish(other, size)
		r.requireCounted()
	}
}

// requireCounted compares the budget of notices with what is kept, in both orders.
func (r *rig) requireCounted() {
	r.t.Helper()
	byArrival, byTopic := 0, 0
	n := &r.engine.notices
	for k := n.oldest; k != nil; k = k.newer {
		byArrival += noticeBytes(k.envelope)
	}
	for _, t := range r.engine.topics {
		if t.catching == nil {
			continue
		}
		dropped := 0
		for _, s := range t.catching.slots {
			if s.notice == nil {
				dropped++
				continue
			}
			byTopic += noticeBytes(s.notice.envelope)
		}
		require.Equal(r.t, dropped, t.catching.dropped)
		require.LessOrEqual(r.t, 2*dropped, len(t.catching.slots))
	}
	require.Equal(r.t, n.used, byArrival)
	require.Equal(r.t, n.used, byTopic)
	require.EqualValues(r.t, n.used, n.budget.Used())
	require.LessOrEqual(r.t, n.budget.Used(), n.budget.Total())
}

// behindOn registers topics whose history nobody reads.
func (r *rig) behindOn(topics int) []topic.Topic {
	all := names(topics)
	for _, name := range all {
		r.store(name, 1)
	}
	s := r.open()
	r.add(s, all...)
	for r.next(s) != nil {
	}
	r.fetches = nil
	return all
}

// A full buffer costs a notice the same whatever it holds, and in whatever order
// its notices came.
func TestDroppingTheOldestNoticeIsCheap(t *testing.T) {
	for name, swap := range map[string]int{"in order": 1, "neighbours swapped": 2, "shuffled in parts": 50, "shuffled far": 5000} {
		t.Run(name, func(t *testing.T) {
			const kept = 20_000
			config := testConfig()
			config.NoticeBytes = kept * noticeBytes(&Envelope{Encoded: make([]byte, 8)})
			r := newRig(t, config)
			all := r.behindOn(2)
			hot, cold := all[0], all[1]
			random := rand.New(rand.NewPCG(1, 2))
			sent := 0
			for sent < 3*kept {
				for _, i := range random.Perm(swap) {
					id := r.last + topic.SequenceID(1+i)
					r.do(func(e *Engine) { e.Notice(hot, id-1, &Envelope{SequenceID: id, Encoded: make([]byte, 8)}) })
				}
				r.last += topic.SequenceID(swap)
				sent += swap
			}
			before := r.engine.notices.shifted
			const more = 1000
			for range more {
				r.publish(cold, 8)
			}
			r.requireCounted()
			require.LessOrEqual(t, r.engine.notices.shifted-before, 2*kept+more*maxLate, "slots moved for the other topic")
			require.LessOrEqual(t, r.engine.notices.shifted, sent*(maxLate+2), "slots moved in all")
			t.Logf("%.2f slots moved a notice", float64(r.engine.notices.shifted)/float64(sent))
		})
	}
}

// What comes much later than what follows it is left to the database.
func TestALateNoticeIsKeptUpToABound(t *testing.T) {
	r := newRig(t, testConfig())
	name := r.behindOn(1)[0]
	announce := func(id topic.SequenceID) {
		r.do(func(e *Engine) { e.Notice(name, id-1, &Envelope{SequenceID: id, Encoded: make([]byte, 8)}) })
	}
	for i := range topic.SequenceID(maxLate) {
		announce(100 + i)
	}
	c := r.engine.topics[name].catching
	announce(50)
	require.Len(t, c.slots, maxLate+1)
	announce(49)
	require.Len(t, c.slots, maxLate+1)
	announce(51)
	require.Len(t, c.slots, maxLate+2)
}

// The bound is one of memory: what the budget counts is no less than what the heap
// grows by, whatever the size of envelopes and the number of topics.
func TestTheBoundOnNoticesIsOneOfMemory(t *testing.T) {
	const room = 16 << 20
	for _, topics := range []int{1, 20_000} {
		for _, size := range []int{40, 100, 300, 5000} {
			t.Run(fmt.Sprintf("%d topics, %d bytes", topics, size), func(t *testing.T) {
				config := testConfig()
				config.NoticeBytes, config.BudgetBytes = room, 64<<20
				r := newRig(t, config)
				all := r.behindOn(topics)
				r.rows = nil
				before := heap()
				at := topic.SequenceID(1_000_000)
				for rounds := 0; r.engine.notices.used < room*95/100; rounds++ {
					require.Less(t, rounds, room/size)
					for _, name := range all {
						at++
						message := make([]byte, 88+size) // as it comes from the bus
						r.do(func(e *Engine) { e.Notice(name, at-1, &Envelope{SequenceID: at, Encoded: message[88:]}) })
					}
				}
				grown, counted := int64(heap()-before), r.engine.notices.budget.Used()
				t.Logf("%d bytes counted, %d of heap", counted, grown)
				require.LessOrEqual(t, grown, counted*102/100)
				require.GreaterOrEqual(t, grown, counted/2, "the buffer is not half as small as it may be")
				runtime.KeepAlive(r)
			})
		}
	}
}
