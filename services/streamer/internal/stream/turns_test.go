package stream

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// reads is a database whose reads of heads each wait for a word.
type reads struct {
	table
	begun chan read
}

type read struct {
	topics int
	done   chan struct{}
}

func (d *reads) Heads(ctx context.Context, topics []topic.Topic) ([]topic.SequenceID, error) {
	r := read{len(topics), make(chan struct{})}
	d.begun <- r
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	return make([]topic.SequenceID, len(topics)), ctx.Err()
}

func many(n int) []topic.Topic {
	names := make([]topic.Topic, n)
	for i := range names {
		raw := make([]byte, topic.GroupIDLength)
		raw[0], raw[1], raw[2] = byte(i), byte(i>>8), byte(i>>16)
		name, err := topic.New(topic.GroupMessage, raw)
		if err != nil {
			panic(err)
		}
		names[i] = name
	}
	return names
}

// However many streams add very many topics at once, one that adds a few waits for
// one read of a bounded number of topics, and each update has one answer.
func TestAFewTopicsDoNotWaitForThoseOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &reads{begun: make(chan read, 100)}
		h := newHub(t, &db.table)
		h.database = db
		const greedy, each = 20, 5*headTopics + 1
		var streams []*transport
		for range greedy {
			w := serve(t, h.Subscribe)
			w.next()
			w.update(1, many(each))
			streams = append(streams, w)
		}
		synctest.Wait()
		require.Len(t, db.begun, h.config.HeadReads, "all places are taken")
		var running []read
		for range h.config.HeadReads {
			running = append(running, <-db.begun)
		}
		modest := serve(t, h.Subscribe)
		modest.next()
		for id := range uint64(20) {
			modest.update(id+1, []topic.Topic{group(byte(200 + id))})
			synctest.Wait()
			require.Empty(t, db.begun)
			require.Equal(t, headTopics, running[0].topics)
			close(running[0].done)
			few := <-db.begun
			require.Equal(t, 1, few.topics, "the next read is for who adds one topic")
			close(few.done)
			require.Equal(t, id+1, modest.next().GetApplied().GetId())
			running = append(running[1:], <-db.begun)
		}
		finished := make(chan struct{})
		go func() { // everything else ends as soon as it begins
			for {
				select {
				case r := <-db.begun:
					close(r.done)
				case <-finished:
					return
				}
			}
		}()
		for _, r := range running {
			close(r.done)
		}
		for _, w := range streams {
			applied := w.next().GetApplied()
			require.EqualValues(t, 1, applied.GetId())
			require.Len(t, applied.GetAddedTargets(), each)
		}
		synctest.Wait()
		close(finished)
		for _, w := range streams {
			require.Empty(t, w.toClient)
			w.cancel()
			_ = w.end()
		}
		modest.hangUp(h)
	})
}

// Who gave up is in nobody's way, whether its turn came at that moment or not.
func TestWhoGivesUpItsTurnLeavesThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := newTurns(1)
		var a, b account
		require.True(t, places.take(t.Context(), nil, &a, 5))
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan bool)
		go func() { gaveUp <- places.take(ctx, nil, &b, 1) }()
		synctest.Wait()
		cancel()
		require.False(t, <-gaveUp)
		require.Empty(t, places.waiting)
		places.give()
		ended := make(chan struct{})
		close(ended)
		places.take(t.Context(), ended, &b, 1) // either way
		places.mu.Lock()
		free := places.free
		places.mu.Unlock()
		if free == 0 {
			places.give()
		}
		require.True(t, places.take(t.Context(), nil, &a, 5))
	})
}
