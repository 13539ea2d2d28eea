package delivery

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// addsOf are n topics that no other call with another number shares.
func addsOf(number, n int) []Add {
	adds := make([]Add, n)
	for i, name := range names(n) {
		adds[i].Topic = topic.Topic(strings.Replace(string(name), "0000", string(rune('A'+number))+"000", 1))
	}
	return adds
}

// try carries out an update and returns why it failed.
func (r *rig) try(s *Session, u Update) *fault.Error {
	r.updates[s]++
	u.ID, u.Answer = r.updates[s], Applied
	for r.next(s) != nil { // make room
	}
	r.do(func(e *Engine) { require.True(r.t, e.Begin(s, u)) })
	for {
		var progress Progress
		var failure *fault.Error
		r.do(func(e *Engine) { progress, failure = e.Step(s) })
		switch {
		case failure != nil || progress == Done:
			return failure
		case progress == NeedHeads:
			names, _ := s.Pending()
			r.do(func(e *Engine) { e.Heads(s, make([]topic.SequenceID, len(names))) })
		}
	}
}

// The bound on registrations holds at its value and refuses one more, without a word
// to other streams; what is removed or closed is room again.
func TestTheBoundOnRegistrations(t *testing.T) {
	const room = modestTopics
	config := testConfig()
	config.RegistrationBytes = room*RegistrationBytes + RegistrationBytes - 1
	config.BudgetBytes = 64 << 20
	r := newRig(t, config)
	first, second := r.open(), r.open()
	require.Nil(t, r.try(first, Update{Adds: addsOf(0, room-10)}))
	require.Nil(t, r.try(second, Update{Adds: addsOf(1, 10)}))
	third := r.open()
	failure := r.try(third, Update{Adds: addsOf(2, 1)})
	require.Equal(t, fault.Exhausted, failure.Kind)
	require.Zero(t, third.Registered(), "nothing of it is applied")
	require.Nil(t, first.Err())
	// A stream may always change its topics for others.
	require.Nil(t, r.try(second, Update{Adds: addsOf(2, 10), Removes: topicsOf(addsOf(1, 10))}))
	require.Nil(t, r.try(second, Update{Removes: topicsOf(addsOf(2, 10))}))
	require.Nil(t, r.try(first, Update{Adds: addsOf(3, 9)}))
	r.do(func(e *Engine) { require.False(t, e.Close(third)) })
	require.Nil(t, r.try(r.open(), Update{Adds: addsOf(4, 1)}))
	require.EqualValues(t, room*RegistrationBytes, r.engine.Budgets().Registrations.Used())
	for s := range r.engine.sessions {
		for more := true; more; {
			r.do(func(e *Engine) { more = e.Close(s) })
		}
	}
	require.Zero(t, r.engine.Budgets().Registrations.Used())
}

func topicsOf(adds []Add) (names []topic.Topic) {
	for _, add := range adds {
		names = append(names, add.Topic)
	}
	return names
}

// Streams with very many topics leave room for those with few.
func TestTheLastRegistrationsAreForModestStreams(t *testing.T) {
	config := testConfig()
	config.RegistrationBytes = 8 * modestTopics * RegistrationBytes
	config.BudgetBytes = 64 << 20
	r := newRig(t, config)
	require.Nil(t, r.try(r.open(), Update{Adds: addsOf(0, 6*modestTopics)}))
	require.Equal(t, fault.Exhausted, r.try(r.open(), Update{Adds: addsOf(1, modestTopics+1)}).Kind)
	require.Nil(t, r.try(r.open(), Update{Adds: addsOf(2, modestTopics)}))
	require.Nil(t, r.try(r.open(), Update{Adds: addsOf(3, modestTopics)}))
	require.Equal(t, fault.Exhausted, r.try(r.open(), Update{Adds: addsOf(4, 1)}).Kind)
}

// An update counts from before it is decoded, and one that does not fit is refused.
func TestUpdatesCountWhileTheyWait(t *testing.T) {
	config := testConfig()
	config.RegistrationBytes = 10*UpdateTopicBytes + 500
	r := newRig(t, config)
	require.Nil(t, r.engine.HoldUpdate(10, 500))
	require.Equal(t, fault.Exhausted, r.engine.HoldUpdate(1, 0).Kind)
	r.engine.ReleaseUpdate(10, 500)
	require.Equal(t, fault.Exhausted, r.engine.HoldUpdate(10, 501).Kind)
	require.Zero(t, r.engine.registrations.used)
}

// A registration counts as no less than what it takes in memory, while it catches up
// and when it is current.
func TestRegistrationsCountAsTheirMemory(t *testing.T) {
	const topics = 100_000
	config := testConfig()
	config.SessionBytes, config.BudgetBytes = 16<<20, 64<<20
	r := newRig(t, config)
	before := heap()
	s := r.open()
	require.Nil(t, r.try(s, Update{Adds: longTopics(topics)}))
	for r.next(s) != nil {
	}
	current := heap() - before
	for name := range r.engine.topics {
		r.do(func(e *Engine) { e.Raise(name, 1) })
	}
	r.fetches = nil
	behind := heap() - before
	counted := r.engine.Budgets().Registrations.Used() / topics
	t.Logf("%d bytes counted, %d current, %d behind", counted, current/topics, behind/topics)
	require.EqualValues(t, RegistrationBytes, counted)
	require.Less(t, behind/topics, uint64(RegistrationBytes))
	require.Greater(t, current/topics, uint64(RegistrationBytes/2))
	runtime.KeepAlive(r)
}

// An update whose answer has no room in the budget begins when there is some, though
// nothing is sent on its own stream.
func TestAnUpdateThatWaitsForTheBudgetBegins(t *testing.T) {
	config := testConfig()
	config.SessionBytes = 64 << 10
	config.PageRows, config.PageBytes, config.EnvelopeBytes = 1, 10, 10
	config.BudgetBytes = AnswerBytes(300) + 300
	r := newRig(t, config)
	first, second := r.open(), r.open()
	r.update(first, Update{Adds: addsOf(0, 200)})
	u := Update{ID: 1, Answer: Applied, Adds: addsOf(1, 200)}
	require.False(t, r.engine.Begin(second, u))
	require.Equal(t, Applied, r.engine.Next(first).Kind)
	require.Nil(t, r.engine.Next(first))
	require.Empty(t, r.engine.TakeEffects().Room, "the transport has it still")
	require.True(t, r.engine.Waits(first), "it matters when it is written")
	r.engine.Written(first.out.owed[0])
	require.Equal(t, []*Session{second}, r.engine.TakeEffects().Room)
	require.True(t, r.engine.Begin(second, u))
}
