package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

var bufferPool = mem.DefaultBufferPool()

// streamsOfConnection is below the 100 that a public port allows (API-132).
const streamsOfConnection = 90

// lookEvery is one in how many streams looks into what it gets, for the latency of
// deliveries.
const lookEvery = 50

// streams opens streams, publishes to their topics, and measures what arrives.
func (r *run) streams(ctx context.Context) (*Result, error) {
	if callers := r.config.Concurrency / len(r.conns); r.config.Streams > (streamsOfConnection-callers)*len(r.conns) {
		return nil, fmt.Errorf("%d streams need at least %d connections: a connection carries %d calls", r.config.Streams,
			1+(r.config.Streams+r.config.Concurrency)/streamsOfConnection, streamsOfConnection)
	}
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	var wait sync.WaitGroup
	defer wait.Wait()
	defer stop()
	opened := newRecorder()
	for i := range r.config.Streams {
		from, to := 0, len(r.messages)
		if r.config.Workload == ManyTopics {
			from, to = i*r.config.Topics, (i+1)*r.config.Topics
		}
		begun := time.Now()
		stream, err := openStatic(receiving, r.conns[i%len(r.conns)], r.subscription(from, to))
		if err != nil {
			return nil, fmt.Errorf("open stream %d: %w", i+1, err)
		}
		if _, err := receive(stream, nil); err != nil { // Started
			return nil, fmt.Errorf("open stream %d: %w", i+1, err)
		}
		opened.record(time.Since(begun), 0)
		wait.Go(func() { r.listen(receiving, stream, i) })
		if (i+1)%100 == 0 {
			r.tell(Point{What: fmt.Sprintf("%d of %d streams are open", i+1, r.config.Streams)})
		}
	}
	return r.calls(ctx, r.publishOnce)
}

func (r *run) listen(ctx context.Context, stream grpc.ClientStream, i int) {
	var look func([]byte)
	if i%lookEvery == 0 {
		look = func(frame []byte) {
			now := time.Now()
			sentTimes(frame, func(sent time.Time) { r.delivered.record(now.Sub(sent), 0) })
		}
	}
	for {
		n, err := receive(stream, look)
		if err != nil {
			if ctx.Err() == nil {
				r.failure.add(fmt.Errorf("a stream ended: %w", err))
			}
			return
		}
		r.delivered.count(i, n)
	}
}

// awaitReplica waits until the last envelope of each topic is on the instance that
// streams read from, so that catching up does not wait for it.
func (r *run) awaitReplica(ctx context.Context) error {
	request := encode(&backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{wireTopic(r.messages[len(r.messages)-1].topic)}})
	for deadline := time.Now().Add(time.Minute); ; {
		n, err := invoke(ctx, r.conns[0], newestMethod, request)
		if err == nil && n > 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("what was stored does not reach the replica: %w", err)
		}
		if !pauseAfterFailure(ctx) {
			return context.Cause(ctx)
		}
	}
}
