package delivery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// testConfig has the proportions of the real one, a thousandth of the size.
func testConfig() Config {
	return Config{
		FrameBytes: 2000, PageBytes: 1000, PageRows: 64, PageTopics: 8, EnvelopeBytes: 1100, Fetches: 4,
		SessionFrames: 64, SessionBytes: 16_000, NoticeBytes: 256_000, BudgetBytes: 512_000, RegistrationBytes: 64 << 20,
		SharedBytes: 800, LiveFrames: 4, StepTopics: 512, MaxTopics: 100_000, SlowClient: 30 * time.Second, LostDatabase: time.Minute,
	}
}

// rig is an engine with a database that shows everything at once.
type rig struct {
	t       testing.TB
	engine  *Engine
	now     time.Time
	rows    map[topic.Topic][]*Envelope
	fetches []*Fetch
	ended   []*Session
	last    topic.SequenceID
	updates map[*Session]uint64
}

func newRig(t testing.TB, config Config) *rig {
	r := &rig{t: t, now: time.Unix(1000, 0), rows: map[topic.Topic][]*Envelope{}, updates: map[*Session]uint64{}}
	r.engine = New(config, r.now)
	r.engine.Found()
	return r
}

func (r *rig) do(event func(*Engine)) {
	event(r.engine)
	effects := r.engine.TakeEffects()
	r.fetches = append(r.fetches, effects.Fetch...)
	r.ended = append(r.ended, effects.Ended...)
}

func (r *rig) open() (s *Session) {
	r.do(func(e *Engine) { s = e.Open(nil) })
	return s
}

// store adds a row without telling anybody.
func (r *rig) store(name topic.Topic, size int) (previous topic.SequenceID, e *Envelope) {
	r.last++
	if rows := r.rows[name]; len(rows) > 0 {
		previous = rows[len(rows)-1].SequenceID
	}
	e = &Envelope{SequenceID: r.last, Encoded: make([]byte, size)}
	r.rows[name] = append(r.rows[name], e)
	return previous, e
}

func (r *rig) publish(name topic.Topic, size int) {
	previous, e := r.store(name, size)
	r.do(func(engine *Engine) {
		engine.Notice(name, previous, &Envelope{SequenceID: e.SequenceID, Encoded: e.Encoded})
	})
}

func (r *rig) update(s *Session, u Update) {
	r.t.Helper()
	r.updates[s]++
	u.ID, u.Answer = r.updates[s], Applied
	r.do(func(e *Engine) { require.True(r.t, e.Begin(s, u)) })
	r.finish(s)
}

// finish carries out an update that has begun.
func (r *rig) finish(s *Session) {
	r.t.Helper()
	for {
		var progress Progress
		var failure *fault.Error
		r.do(func(e *Engine) { progress, failure = e.Step(s) })
		require.Nil(r.t, failure)
		switch progress {
		case Done:
			return
		case NeedHeads:
			names, ended := s.Pending()
			require.Nil(r.t, ended)
			heads := make([]topic.SequenceID, len(names))
			for i, name := range names {
				if rows := r.rows[name]; len(rows) > 0 {
					heads[i] = rows[len(rows)-1].SequenceID
				}
			}
			r.do(func(e *Engine) { e.Heads(s, heads) })
		}
	}
}

func (r *rig) add(s *Session, names ...topic.Topic) {
	r.t.Helper()
	var u Update
	for _, name := range names {
		u.Adds = append(u.Adds, Add{Topic: name})
	}
	r.update(s, u)
}

// page answers the oldest fetch in turns over its topics, as the store does.
func (r *rig) page() {
	r.t.Helper()
	require.NotEmpty(r.t, r.fetches)
	f := r.fetches[0]
	r.fetches = r.fetches[1:]
	results := make([]Result, len(f.Requests))
	bytes, cut := 0, false
	for turn := range f.Requests[0].MaxRows {
		for i, q := range f.Requests {
			rows := r.above(q)
			if turn >= len(rows) {
				continue
			}
			if bytes >= f.MaxBytes {
				cut = true
				continue
			}
			e := rows[turn]
			results[i].Envelopes = append(results[i].Envelopes, &Envelope{SequenceID: e.SequenceID, Encoded: e.Encoded})
			bytes += len(e.Encoded)
		}
	}
	for i, q := range f.Requests {
		results[i].More = cut || len(results[i].Envelopes) == q.MaxRows
	}
	r.do(func(e *Engine) { e.Page(f, results) })
}

func (r *rig) above(q *Request) []*Envelope {
	rows := r.rows[q.Topic]
	for len(rows) > 0 && rows[0].SequenceID <= q.After {
		rows = rows[1:]
	}
	return rows
}

// next takes a frame. The transport writes each as soon as it has the next.
func (r *rig) next(s *Session) (f *Frame) {
	before := s.out.sending
	r.do(func(e *Engine) { f = e.Next(s) })
	if before != nil && before.Owed {
		r.do(func(e *Engine) { e.Written(before) })
	}
	return f
}

func (r *rig) tick(after time.Duration) {
	r.now = r.now.Add(after)
	r.do(func(e *Engine) { e.Tick(r.now) })
}

func names(n int) []topic.Topic {
	all := make([]topic.Topic, n)
	for i := range all {
		all[i] = modelTopic(i)
	}
	return all
}

func TestNoTopicGetsASecondFrameOfHistoryBeforeTheOthers(t *testing.T) {
	r := newRig(t, testConfig())
	const topics, rows = 20, 40
	all := names(topics)
	for range rows {
		for _, name := range all {
			r.store(name, 100)
		}
	}
	s := r.open()
	r.add(s, all...)
	require.Equal(t, Applied, r.next(s).Kind)
	of := map[topic.SequenceID]topic.Topic{}
	for name, envelopes := range r.rows {
		for _, e := range envelopes {
			of[e.SequenceID] = name
		}
	}
	frames := map[topic.Topic]int{} // so far
	left := map[topic.Topic]int{}
	for _, name := range all {
		left[name] = rows
	}
	for got := 0; got < topics*rows; {
		f := r.next(s)
		if f == nil {
			r.page()
			continue
		}
		in := map[topic.Topic]bool{}
		for _, e := range f.Envelopes {
			in[of[e.SequenceID]] = true
			left[of[e.SequenceID]]--
			got++
		}
		for name := range in {
			frames[name]++
		}
		for name := range in {
			for _, other := range all {
				require.False(t, left[other] > 0 && frames[other] < frames[name]-1, "a topic has %d frames, another one %d", frames[name], frames[other])
			}
		}
	}
}

// Proves API-097.
func TestACurrentTopicNeverWaitsForHistory(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(3)
	for range 200 {
		r.store(all[0], 100)
	}
	s := r.open()
	r.add(s, all[0], all[1])
	require.Equal(t, Applied, r.next(s).Kind)
	for len(r.fetches) > 0 {
		r.page()
	}
	require.Greater(t, len(s.out.history.frames), 5, "history must wait for this test")
	require.NotNil(t, r.next(s)) // this one is in the transport
	r.publish(all[1], 100)
	f := r.next(s)
	require.Len(t, f.Envelopes, 1)
	require.Equal(t, r.last, f.Envelopes[0].SequenceID)
	require.Equal(t, 1, f.Live)
}

func TestHistoryIsNotStarvedByLiveTraffic(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(2)
	for range 50 {
		r.store(all[0], 100)
	}
	s := r.open()
	r.add(s, all...)
	for len(r.fetches) > 0 {
		r.page()
	}
	history := 0
	for range 40 {
		r.publish(all[1], 1000)
		r.publish(all[1], 1000)
		f := r.next(s)
		history += len(f.Envelopes) - f.Live
		for len(r.fetches) > 0 {
			r.page()
		}
	}
	require.GreaterOrEqual(t, history, 50)
}

// Proves API-094, API-096.
func TestNothingOfATopicComesBeforeItsApplied(t *testing.T) {
	config := testConfig()
	config.LiveFrames = 0
	r := newRig(t, config)
	all := names(1)
	r.store(all[0], 100)
	s := r.open()
	r.add(s, all...)
	r.page()
	require.Equal(t, Applied, r.next(s).Kind)
	require.Equal(t, Messages, r.next(s).Kind)
}

// Proves API-100.
func TestWhatIsQueuedOfARemovedTopicComesBeforeTheApplied(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(2)
	for range 40 {
		r.store(all[0], 100)
	}
	s := r.open()
	r.add(s, all...)
	require.Equal(t, Applied, r.next(s).Kind)
	r.page()
	r.publish(all[1], 100)
	r.update(s, Update{Removes: all})
	r.publish(all[0], 100)
	for len(r.fetches) > 0 {
		r.page()
	}
	kinds := []Kind{}
	for f := r.next(s); f != nil; f = r.next(s) {
		kinds = append(kinds, f.Kind)
	}
	require.Equal(t, Applied, kinds[len(kinds)-1], "%v", kinds)
	require.Greater(t, len(kinds), 2)
}

func TestAFullOutputDelaysNobodyElse(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(1)
	slow, quick := r.open(), r.open()
	r.add(slow, all...)
	r.add(quick, all...)
	require.Equal(t, Applied, r.next(quick).Kind)
	for range 200 {
		r.publish(all[0], 400)
		f := r.next(quick)
		require.Equal(t, 1, f.Live)
		require.Nil(t, r.next(quick))
		require.LessOrEqual(t, slow.out.bytes, 16_000+controlBytes)
	}
	require.True(t, slow.full)
	// Who catches up at last gets everything.
	got := 0
	for got < 200 {
		f := r.next(slow)
		if f == nil {
			r.page()
			continue
		}
		got += len(f.Envelopes)
	}
	require.Equal(t, 200, got)
}

func TestASlowClientEndsOnlyWhenItsTransportTookNothing(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(1)
	stuck, slow := r.open(), r.open()
	r.add(stuck, all...)
	r.add(slow, all...)
	for range 100 {
		r.publish(all[0], 400)
	}
	require.True(t, stuck.full)
	for range 119 { // a moment less than 30 s
		r.tick(250 * time.Millisecond)
		slow.Progressed()
	}
	require.Empty(t, r.ended)
	r.tick(500 * time.Millisecond)
	r.tick(250 * time.Millisecond)
	require.Equal(t, []*Session{stuck}, r.ended)
	require.Equal(t, fault.Exhausted, stuck.Err().Kind)
	for range 200 {
		r.tick(250 * time.Millisecond)
		slow.Progressed()
	}
	require.Len(t, r.ended, 1, "a byte now and then is enough")
}

func TestAnIdleStreamIsNoSlowClient(t *testing.T) {
	r := newRig(t, testConfig())
	s := r.open()
	r.add(s, names(1)...)
	r.tick(time.Hour)
	r.tick(time.Hour)
	require.Empty(t, r.ended)
}

func TestALongEnvelopeIsReadOnceForAllStreams(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(1)
	sessions := make([]*Session, 50)
	for i := range sessions {
		sessions[i] = r.open()
		r.add(sessions[i], all...)
		require.Equal(t, Applied, r.next(sessions[i]).Kind)
	}
	previous, e := r.store(all[0], 1000)
	r.do(func(engine *Engine) { engine.Notice(all[0], previous, &Envelope{SequenceID: e.SequenceID}) })
	require.Len(t, r.fetches, 1)
	require.Len(t, r.fetches[0].Requests, 1)
	used := r.engine.output.used
	r.page()
	for _, s := range sessions {
		require.Len(t, r.next(s).Envelopes, 1)
	}
	require.Less(t, r.engine.output.used, used, "shared bytes count once")
	require.Empty(t, r.fetches)
}

func TestWithoutADatabase(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(2)
	s := r.open()
	r.add(s, all[0])
	r.do((*Engine).Lost)
	require.False(t, r.engine.Connected())
	require.Equal(t, Applied, r.next(s).Kind)
	r.publish(all[0], 100)
	require.Len(t, r.next(s).Envelopes, 1, "a notice that links needs no database")

	r.do(func(e *Engine) {
		e.Begin(s, Update{ID: 2, Answer: Applied, Removes: all[1:], Adds: []Add{{Topic: all[0]}}})
	})
	progress, failure := r.engine.Step(s)
	for ; progress == More && failure == nil; progress, failure = r.engine.Step(s) {
	}
	require.Nil(t, failure, "no new topic, no need for the database")
	r.do(func(e *Engine) { e.Begin(s, Update{ID: 3, Answer: Applied, Adds: []Add{{Topic: all[1]}}}) })
	_, failure = r.engine.Step(s)
	require.Equal(t, fault.Unavailable, failure.Kind)

	r.tick(59 * time.Second)
	require.Empty(t, r.ended)
	r.tick(2 * time.Second)
	require.Equal(t, []*Session{s}, r.ended)
	require.Equal(t, fault.Unavailable, s.Err().Kind)
}

func TestAnotherLineageForgetsEverything(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(1)
	old := r.open()
	r.add(old, all...)
	for range 10 {
		r.publish(all[0], 100)
	}
	r.do(func(e *Engine) {
		e.Lost()
		e.Reset(errLost)
		e.Found()
	})
	require.Equal(t, []*Session{old}, r.ended)
	// The other database has fewer rows; the old stream has not gone yet.
	r.rows[all[0]] = r.rows[all[0]][:2]
	s := r.open()
	r.add(s, all...)
	require.Equal(t, topic.SequenceID(2), r.next(s).Targets[0].Through)
	r.page()
	require.Len(t, r.next(s).Envelopes, 2)
	require.Equal(t, current, s.registrations[r.engine.topics[all[0]]].state)
	require.False(t, r.engine.Close(old))
	require.NotNil(t, r.engine.topics[all[0]], "closing the old stream must not remove the topic of the new one")
}

func TestTheBoundOnTopics(t *testing.T) {
	config := testConfig()
	config.MaxTopics = 10
	r := newRig(t, config)
	s := r.open()
	r.add(s, names(10)...)
	r.add(s, names(10)...) // no-ops do not count
	r.update(s, Update{Removes: names(1), Adds: []Add{{Topic: modelTopic(10)}}})
	require.Equal(t, 10, s.Registered())
	r.do(func(e *Engine) { e.Begin(s, Update{ID: 9, Answer: Applied, Adds: []Add{{Topic: modelTopic(11)}}}) })
	_, failure := r.engine.Step(s)
	require.Equal(t, fault.Invalid, failure.Kind)
	require.Equal(t, 10, s.Registered())
}

func TestAnUpdateWaitsWhileTheOutputIsFull(t *testing.T) {
	r := newRig(t, testConfig())
	s := r.open()
	for range 64 {
		r.do(func(e *Engine) { e.Control(s, &Frame{Kind: Pong}) })
	}
	began := true
	r.do(func(e *Engine) { began = e.Begin(s, Update{ID: 1, Answer: Applied}) })
	require.False(t, began)
	require.NotNil(t, r.next(s))
	room := []*Session{}
	r.engine.Next(s)
	room = append(room, r.engine.TakeEffects().Room...)
	require.Equal(t, []*Session{s}, room)
	require.True(t, r.engine.Begin(s, Update{ID: 1, Answer: Applied}))
}

func TestAClientThatChurnsTopicsDoesNotGrowTheQueue(t *testing.T) {
	r := newRig(t, testConfig())
	all := names(500)
	for _, name := range all {
		r.store(name, 10)
	}
	s := r.open()
	for range 20 {
		r.add(s, all...)
		for r.next(s) != nil { // make room for the next update, no page ever comes
		}
		r.update(s, Update{Removes: all})
		for r.next(s) != nil {
		}
	}
	linked := 0
	for q := s.first; q != nil; q = q.next {
		linked++
	}
	require.LessOrEqual(t, linked, 2*len(all)+1024)
}

// The client went away while its update waited for a read of heads.
func TestAnUpdateOfAClosedSessionReadsNoHeads(t *testing.T) {
	r := newRig(t, testConfig())
	s := r.open()
	r.do(func(e *Engine) {
		require.True(t, e.Begin(s, Update{Adds: []Add{{Topic: modelTopic(0)}}, Answer: Applied}))
	})
	for progress := More; progress != NeedHeads; {
		r.do(func(e *Engine) { progress, _ = e.Step(s) })
	}
	r.do(func(e *Engine) { require.False(t, e.Close(s)) })
	names, ended := s.Pending()
	require.Empty(t, names)
	require.Equal(t, fault.Cancelled, ended.Kind)
	r.do(func(e *Engine) { e.Heads(s, nil) })
}

// Clients that change their topics and read none of the answers leave room for
// those that read, and end when they are too many.
func TestAnswersThatNobodyReadsDelayNobodyElse(t *testing.T) {
	for name, hoarders := range map[string]int{"some": 40, "too many": 400} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, testConfig())
			all := names(60)
			for range hoarders {
				s := r.open()
				for begun := true; begun; {
					for _, u := range []Update{{Answer: Applied}, {Answer: Applied}} {
						if s.Registered() == 0 {
							for _, name := range all {
								u.Adds = append(u.Adds, Add{Topic: name})
							}
						} else {
							u.Removes = all
						}
						r.do(func(e *Engine) { begun = e.Begin(s, u) })
						if !begun {
							break
						}
						r.finish(s)
					}
				}
			}
			reader, topic := r.open(), modelTopic(1000)
			r.store(topic, 500)
			r.add(reader, topic)
			require.Equal(t, Applied, r.next(reader).Kind)
			require.Nil(t, r.next(reader))
			if name == "too many" {
				require.NotEmpty(t, r.engine.starved, "the budget is short")
				r.tick(0)
				r.tick(r.engine.config.SlowClient)
				require.Greater(t, len(r.ended), 40)
				for _, s := range r.ended {
					require.Equal(t, errSlow, s.Err())
					r.do(func(e *Engine) { e.Close(s) })
				}
				require.Nil(t, reader.Err())
			}
			r.page()
			require.Len(t, r.next(reader).Envelopes, 1)
		})
	}
}
