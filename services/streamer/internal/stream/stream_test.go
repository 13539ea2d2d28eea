package stream

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/metertest"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// Proves API-090.
func TestStartedGoesOutBeforeAnythingIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, &table{})
		w := serve(t, h.Subscribe)
		w.ping(1)
		time.Sleep(time.Second) // the transport does not take Started yet
		require.Zero(t, w.calls())
		require.EqualValues(t, 30_000, w.next().GetStarted().GetKeepaliveIntervalMs())
		require.EqualValues(t, 1, w.next().GetPong().GetNonce())
		w.hangUp(h)
	})
}

// Proves API-099, API-104.
func TestPingWhenNothingWasSentForTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{}
		h := newHub(t, db)
		w := serve(t, h.Subscribe)
		require.NotNil(t, w.next().GetStarted())
		begun := time.Now()
		ping := w.next().GetPing()
		require.NotNil(t, ping)
		require.Equal(t, 30*time.Second, time.Since(begun))
		w.pong(ping.Nonce)
		second := w.next().GetPing()
		require.NotEqual(t, ping.Nonce, second.GetNonce())
		require.Equal(t, time.Minute, time.Since(begun))
		w.pong(second.Nonce)

		// Whatever is sent counts.
		time.Sleep(20 * time.Second)
		w.ping(7)
		require.EqualValues(t, 7, w.next().GetPong().GetNonce())
		third := w.next().GetPing()
		require.NotNil(t, third)
		require.Equal(t, 110*time.Second, time.Since(begun))

		// One ping is outstanding at a time, and only its nonce counts.
		time.Sleep(60 * time.Second)
		w.pong(third.Nonce + 1)
		time.Sleep(29 * time.Second)
		select {
		case <-w.toClient:
			require.Fail(t, "a second ping")
		default:
		}
		err := w.end()
		require.Equal(t, fault.Late, fault.KindOf(err))
		require.Equal(t, 200*time.Second, time.Since(begun))
		h.Close()
	})
}

// Proves API-099, API-104.
func TestAPongInTimeKeepsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, &table{})
		w := serve(t, h.Subscribe)
		w.next()
		for range 5 {
			ping := w.next().GetPing()
			require.NotNil(t, ping)
			time.Sleep(90*time.Second - time.Millisecond)
			w.pong(ping.Nonce)
			synctest.Wait()
		}
		w.hangUp(h)
	})
}

// The receiver is busy with an update when the deadline passes: the Pong behind
// it has arrived and must be seen first.
func TestReceivedFramesAreProcessedBeforeATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{hold: make(chan struct{})}
		h := newHub(t, db)
		w := serve(t, h.Subscribe)
		w.next()
		ping := w.next().GetPing()
		w.update(1, []topic.Topic{group(1)}) // waits for its heads
		w.pong(ping.Nonce)
		time.Sleep(100 * time.Second)
		close(db.hold)
		f := w.next()
		if f.GetPing() != nil { // the next one is due by now
			f = w.next()
		}
		require.EqualValues(t, 1, f.GetApplied().GetId())
		w.hangUp(h)
	})
}

// Proves API-113.
func TestStaticKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{}
		h := newHub(t, db)
		w := serve(t, h.SubscribeStatic)
		w.send(&backendv1.SubscribeStaticRequest{Topics: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group(1))}}}})
		var frame backendv1.SubscribeStaticResponse
		w.take(&frame)
		require.Len(t, frame.GetStarted().GetTargets(), 1)
		begun := time.Now()
		w.take(&frame)
		require.NotNil(t, frame.GetKeepalive())
		require.Equal(t, 30*time.Second, time.Since(begun))
		time.Sleep(20 * time.Second)
		h.Notice(db.store(group(1), 10))
		w.take(&frame)
		require.Len(t, frame.GetMessages().GetEnvelopes(), 1)
		w.take(&frame)
		require.NotNil(t, frame.GetKeepalive())
		require.Equal(t, 80*time.Second, time.Since(begun))
		w.hangUp(h)
	})
}

// Proves API-107, API-145, I8.
func TestBucketsHoldExactlyTheirBurst(t *testing.T) {
	for name, send := range map[string]func(w *transport, n uint64){
		"pings":   func(w *transport, n uint64) { w.ping(n) },
		"updates": func(w *transport, n uint64) { w.update(n, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub(t, &table{})
				w := serve(t, h.Subscribe)
				w.next()
				n := uint64(0)
				burst := func(size int) {
					for range size {
						n++
						send(w, n)
						w.next()
					}
				}
				burst(100)
				time.Sleep(100 * time.Millisecond) // one token
				burst(1)
				time.Sleep(time.Second) // ten
				burst(10)
				time.Sleep(time.Minute) // full again, not fuller
				for f := w.next(); f.GetPing() != nil; f = w.next() {
					w.pong(f.GetPing().Nonce)
					break
				}
				time.Sleep(20 * time.Second)
				burst(100)
				for range 1000 {
					w.pong(1) // free
				}
				n++
				send(w, n)
				require.Equal(t, fault.Exhausted, fault.KindOf(w.end()))
				h.Close()
			})
		})
	}
}

// Proves API-107.
func TestTheBucketsAreSeparate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, &table{})
		w := serve(t, h.Subscribe)
		w.next()
		for n := range uint64(100) {
			w.ping(n)
			w.update(n+1, nil)
			w.next()
			w.next()
		}
		w.hangUp(h)
	})
}

// Proves API-108.
func TestHalfCloseEndsWithOKWithoutWaitingForHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{}
		for range 100 {
			db.store(group(1), 100_000)
		}
		h := newHub(t, db)
		w := serve(t, h.Subscribe)
		w.next()
		w.update(1, []topic.Topic{group(1)})
		w.next()
		close(w.toServer)
		begun := time.Now()
		require.NoError(t, <-w.result, "nobody takes the history")
		require.Zero(t, time.Since(begun))
		h.Close()
	})
}

// Proves API-003, API-004, API-091, API-092, API-093, API-106.
func TestInvalidRequestsEndTheStream(t *testing.T) {
	cursor := func(name topic.Topic, at uint64) *backendv1.TopicQuery {
		return &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: []byte(name)}, Cursor: &backendv1.Cursor{SequenceId: at}}
	}
	of := func(u *backendv1.SubscribeRequest_Update) *backendv1.SubscribeRequest {
		return &backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: u}}
	}
	bare := func(raw string) *backendv1.Topic { return &backendv1.Topic{Topic: []byte(raw)} }
	for name, request := range map[string]*backendv1.SubscribeRequest{
		"nothing":            {},
		"id 0":               of(&backendv1.SubscribeRequest_Update{}),
		"id repeated":        of(&backendv1.SubscribeRequest_Update{Id: 1}),
		"topic added twice":  of(&backendv1.SubscribeRequest_Update{Id: 2, Adds: []*backendv1.TopicQuery{cursor(group(1), 0), cursor(group(1), 0)}}),
		"added and removed":  of(&backendv1.SubscribeRequest_Update{Id: 2, Adds: []*backendv1.TopicQuery{cursor(group(2), 0)}, Removes: []*backendv1.Topic{bare(string(group(2)))}}),
		"removed twice":      of(&backendv1.SubscribeRequest_Update{Id: 2, Removes: []*backendv1.Topic{bare(string(group(2))), bare(string(group(2)))}}),
		"unknown kind":       of(&backendv1.SubscribeRequest_Update{Id: 2, Adds: []*backendv1.TopicQuery{{Topic: bare("\x05aaaabbbbccccdddd")}}}),
		"wrong length":       of(&backendv1.SubscribeRequest_Update{Id: 2, Removes: []*backendv1.Topic{bare("\x00aaaa")}}),
		"no topic":           of(&backendv1.SubscribeRequest_Update{Id: 2, Adds: []*backendv1.TopicQuery{{}}}),
		"cursor too large":   of(&backendv1.SubscribeRequest_Update{Id: 2, Adds: []*backendv1.TopicQuery{cursor(group(2), 1<<63)}}),
		"too many adds":      of(&backendv1.SubscribeRequest_Update{Id: 2, Adds: []*backendv1.TopicQuery{cursor(group(2), 0), cursor(group(3), 0), cursor(group(4), 0), cursor(group(5), 0)}}),
		"too many removes":   of(&backendv1.SubscribeRequest_Update{Id: 2, Removes: []*backendv1.Topic{bare(string(group(2))), bare(string(group(3))), bare(string(group(4)))}}),
		"too many in stream": of(&backendv1.SubscribeRequest_Update{Id: 2, Adds: []*backendv1.TopicQuery{cursor(group(2), 0), cursor(group(3), 0), cursor(group(4), 0)}}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub(t, &table{}, func(_ *Config, l *limit.Config) {
					l.MaxUpdateAdds, l.MaxUpdateRemoves, l.MaxStreamTopics = 3, 2, 3
				})
				w := serve(t, h.Subscribe)
				w.next()
				w.update(1, []topic.Topic{group(1)})
				require.Len(t, w.next().GetApplied().GetAddedTargets(), 1)
				w.send(request)
				require.Equal(t, fault.Invalid, fault.KindOf(w.end()))
				h.Close()
			})
		})
	}
}

// Proves API-091, API-092, API-093, API-094, API-100, API-145.
func TestLimitsAtTheirValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, &table{}, func(_ *Config, l *limit.Config) {
			l.MaxUpdateAdds, l.MaxUpdateRemoves, l.MaxStreamTopics = 3, 2, 3
		})
		w := serve(t, h.Subscribe)
		w.next()
		w.update(1, []topic.Topic{group(1), group(2), group(3)})
		require.Len(t, w.next().GetApplied().GetAddedTargets(), 3)
		w.update(2, []topic.Topic{group(3), group(4), group(5)}, group(1), group(2))
		targets := w.next().GetApplied().GetAddedTargets()
		require.Len(t, targets, 2, "an active topic has no target")
		require.Equal(t, []byte(group(4)), targets[0].Topic.Topic)
		require.Equal(t, []byte(group(5)), targets[1].Topic.Topic)
		w.update(1<<63, nil, group(9)) // a no-op, and any larger id
		require.Equal(t, uint64(1<<63), w.next().GetApplied().GetId())
		w.hangUp(h)
	})
}

// Proves API-110, API-111, API-145.
func TestStaticRequestsAreChecked(t *testing.T) {
	many := func(n int) *backendv1.SubscribeStaticRequest {
		r := &backendv1.SubscribeStaticRequest{}
		for i := range n {
			r.Topics = append(r.Topics, &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: []byte(group(byte(i)))}})
		}
		return r
	}
	twice := many(2)
	twice.Topics[1] = twice.Topics[0]
	for name, request := range map[string]*backendv1.SubscribeStaticRequest{"none": many(0), "too many": many(6), "twice": twice} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub(t, &table{}, func(_ *Config, l *limit.Config) { l.MaxStaticTopics = 5 })
				w := serve(t, h.SubscribeStatic)
				w.send(request)
				require.Equal(t, fault.Invalid, fault.KindOf(w.end()))
				h.Close()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		db := &table{}
		db.store(group(3), 10)
		h := newHub(t, db, func(_ *Config, l *limit.Config) { l.MaxStaticTopics = 5 })
		w := serve(t, h.SubscribeStatic)
		w.send(many(5))
		var frame backendv1.SubscribeStaticResponse
		w.take(&frame)
		targets := frame.GetStarted().GetTargets()
		require.Len(t, targets, 5)
		for i, target := range targets {
			require.Equal(t, []byte(group(byte(i))), target.Topic.Topic)
			require.Equal(t, i == 3, target.ThroughSequenceId == 1)
		}
		w.take(&frame)
		require.Len(t, frame.GetMessages().GetEnvelopes(), 1)
		w.hangUp(h)
	})
}

func TestWithoutADatabaseNoStreamsAndNoTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{}
		h := newHub(t, db)
		w := serve(t, h.Subscribe)
		w.next()
		w.update(1, []topic.Topic{group(1)})
		w.next()
		h.Lost()
		require.Equal(t, fault.Unavailable, fault.KindOf(h.Subscribe(w)))
		h.Notice(db.store(group(1), 10))
		require.Len(t, w.next().GetMessages().GetEnvelopes(), 1)
		w.update(2, nil, group(7))
		require.EqualValues(t, 2, w.next().GetApplied().GetId())
		w.update(3, []topic.Topic{group(2)})
		require.Equal(t, fault.Unavailable, fault.KindOf(w.end()))
		h.Close()
	})
}

func TestNoticesOfAnotherLineageAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{}
		h := newHub(t, db)
		w := serve(t, h.Subscribe)
		w.next()
		w.update(1, []topic.Topic{group(1)})
		w.next()
		n := db.store(group(1), 10)
		n.Lineage.Timeline++
		h.Notice(n)
		n.Lineage.Timeline--
		time.Sleep(time.Second)
		select {
		case <-w.toClient:
			require.Fail(t, "it was delivered")
		default:
		}
		h.Notice(n)
		require.Len(t, w.next().GetMessages().GetEnvelopes(), 1)
		w.hangUp(h)
	})
}

// A notice of the old lineage that came before the database changed, and gets its
// turn at the engine after that, reaches no stream of the new one.
func TestANoticeThatWaitsWhileTheDatabaseChangesIsDropped(t *testing.T) {
	db := &table{}
	h := newHub(t, db)
	old := db.store(group(1), 10)
	db.rows = nil
	heard := make(chan struct{})
	h.mu.Lock()
	go func() {
		defer close(heard)
		h.Notice(old)
	}()
	awaitBlocked(t, "(*Hub).Notice")
	// What Reset, Found and a new stream do, without the lock.
	h.engine.Lost()
	h.engine.Reset(fault.Errorf(fault.Unavailable, "changed"))
	h.lineage = notice.Lineage{SystemIdentifier: 1, Timeline: 2}
	h.engine.Found()
	s := h.engine.Open(nil)
	require.True(t, h.engine.Begin(s, delivery.Update{ID: 1, Answer: delivery.Applied, Adds: []delivery.Add{{Topic: group(1)}}}))
	for progress := delivery.More; progress != delivery.Done; {
		var failure *fault.Error
		progress, failure = h.engine.Step(s)
		require.Nil(t, failure)
		if progress == delivery.NeedHeads {
			h.engine.Heads(s, make([]topic.SequenceID, 1))
		}
	}
	require.Equal(t, delivery.Applied, h.engine.Next(s).Kind)
	h.engine.TakeEffects()
	h.mu.Unlock()
	<-heard
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Nil(t, h.engine.Next(s), "an envelope that the new database does not have")
}

// awaitBlocked returns when a goroutine waits for a mutex inside the function.
func awaitBlocked(t *testing.T, function string) {
	t.Helper()
	require.Eventually(t, func() bool {
		stacks := make([]byte, 1<<20)
		for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, function) && strings.Contains(stack, "sync.(*Mutex)") {
				return true
			}
		}
		return false
	}, 10*time.Second, time.Millisecond, "nobody waits for the lock in %s", function)
}

// What the sweep finds counts as missed once the next sweep has ended and no notice
// came, and never when one did.
func TestOnlyWhatNoNoticeAnnouncesIsCountedAsFoundBySweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{}
		h := newHub(t, db)
		m := metertest.New(t)
		h.meter = NewMeter(m.Metrics)
		w := serve(t, h.Subscribe)
		w.next()
		w.update(1, []topic.Topic{group(1), group(2), group(3)})
		w.next()
		sweep := func(rows ...store.SweepRow) int64 {
			h.Raise(rows)
			h.Tick(time.Now())
			synctest.Wait()
			return m.Count("xmtp_sweep_found")
		}
		row := func(n notice.Notice, envelopes int64) store.SweepRow {
			return store.SweepRow{Topic: n.Topic, SequenceID: n.SequenceID, Envelopes: envelopes}
		}
		before := db.store(group(1), 10)
		soon, late, never := db.store(group(1), 10), db.store(group(2), 10), db.store(group(3), 10)
		foreign := db.store(group(4), 10)
		h.Notice(before)
		require.Zero(t, sweep(row(soon, 2), row(late, 1), row(never, 3), row(foreign, 5)))
		h.Notice(soon)
		require.EqualValues(t, 4, sweep(), "late and never")
		h.Notice(late)
		require.EqualValues(t, 4, sweep(), "counted once")
		require.EqualValues(t, 4, sweep())
		w.hangUp(h)
	})
}

// Proves API-099.
func TestPingsAreAnsweredUnderFullOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{}
		h := newHub(t, db)
		w := serve(t, h.Subscribe)
		w.next()
		w.update(1, []topic.Topic{group(1)})
		w.next()
		for range 100 {
			h.Notice(db.store(group(1), 1<<20-1000))
		}
		w.ping(5)
		synctest.Wait()
		for frames := 0; ; frames++ {
			if w.next().GetPong().GetNonce() == 5 {
				require.Less(t, frames, 3, "the Pong must not wait behind all messages")
				break
			}
		}
		w.hangUp(h)
	})
}

func TestAClientThatTakesNothingEndsAsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{}
		h := newHub(t, db)
		w := serve(t, h.Subscribe)
		w.next()
		w.update(1, []topic.Topic{group(1)})
		w.next()
		for range 100 {
			h.Notice(db.store(group(1), 1<<20-1000))
		}
		begun := time.Now()
		for time.Since(begun) < 40*time.Second {
			h.Tick(time.Now())
			select {
			case err := <-w.result:
				require.Equal(t, fault.Exhausted, fault.KindOf(err))
				require.InDelta(t, 30, time.Since(begun).Seconds(), 1)
				h.Close()
				return
			case <-time.After(250 * time.Millisecond):
			}
		}
		require.Fail(t, "it did not end")
	})
}

// Every frame must be what protobuf makes of the same message, whatever its
// buffers are.
func TestFramesOfAllSizes(t *testing.T) {
	for _, sizes := range [][]int{{0}, {1, 2, 3}, {copyBelow - 60, copyBelow - 50, copyBelow}, {1 << 20}, {10, 1 << 19, 10, 1 << 19, 20}, make([]int, 3000)} {
		t.Run(fmt.Sprint(len(sizes), sizes[0]), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &table{}
				h := newHub(t, db)
				w := serve(t, h.Subscribe)
				w.next()
				w.update(1, []topic.Topic{group(1)})
				w.next()
				h.Notice(db.store(group(1), 1)) // keeps the transport busy
				synctest.Wait()
				for _, size := range sizes {
					h.Notice(db.store(group(1), size))
				}
				require.Len(t, w.next().GetMessages().GetEnvelopes(), 1)
				got := w.next().GetMessages().GetEnvelopes()
				require.Len(t, got, len(sizes))
				for i, e := range got {
					want := &backendv1.ServerEnvelope{}
					require.NoError(t, proto.Unmarshal(db.rows[i+1].Encoded, want))
					require.True(t, proto.Equal(want, e))
				}
				w.hangUp(h)
			})
		})
	}
}
