package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

var bufferPool = mem.DefaultBufferPool()

// streamsOfConnection is below the 100 that a public port allows (API-132).
const streamsOfConnection = 90

// Of many streams one in lookEvery looks into what it gets, for the latency of
// deliveries; of few at least lookers do.
const (
	lookEvery = 50
	lookers   = 10
)

// Beside is done while the streams of a run are open, before it measures. It gets
// their topics; end is called after the measurement.
type Beside func(ctx context.Context, topics []topic.Topic) (end func() error, err error)

// RunBeside is Run of a workload with streams, with something else going on
// beside it.
func RunBeside(ctx context.Context, config Config, beside Beside) (*Result, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	run, err := newRun(config, nil)
	if err != nil {
		return nil, err
	}
	defer run.close()
	return run.streamsBeside(ctx, beside)
}

// streams opens streams, publishes to their topics, and measures what arrives.
func (r *run) streams(ctx context.Context) (*Result, error) { return r.streamsBeside(ctx, nil) }

func (r *run) streamsBeside(ctx context.Context, beside Beside) (*Result, error) {
	if callers := r.config.Concurrency / len(r.conns); r.config.Streams > (streamsOfConnection-callers)*len(r.conns) {
		return nil, fmt.Errorf("%d streams need at least %d connections: a connection carries %d calls", r.config.Streams,
			1+(r.config.Streams+r.config.Concurrency)/streamsOfConnection, streamsOfConnection)
	}
	receiving, stop := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer stop()
	if err := r.openStreams(receiving, &wait); err != nil {
		return nil, err
	}
	if beside == nil {
		return r.calls(ctx, r.publishOnce)
	}
	topics := make([]topic.Topic, len(r.messages))
	for i := range r.messages {
		topics[i] = r.messages[i].topic
	}
	end, err := beside(receiving, topics)
	if err != nil {
		return nil, err
	}
	result, err := r.calls(ctx, r.publishOnce)
	return result, errors.Join(err, end())
}

func (r *run) openStreams(receiving context.Context, wait *sync.WaitGroup) error {
	for i := range r.config.Streams {
		from, to := 0, len(r.messages)
		if r.config.Workload == ManyTopics {
			from, to = i*r.config.Topics, (i+1)*r.config.Topics
		}
		stream, err := openStatic(receiving, r.conns[i%len(r.conns)], r.subscription(from, to))
		if err != nil {
			return fmt.Errorf("open stream %d: %w", i+1, err)
		}
		if _, err := receive(stream, nil); err != nil { // Started
			return fmt.Errorf("open stream %d: %w", i+1, err)
		}
		wait.Go(func() { r.listen(receiving, stream, i) })
		if (i+1)%100 == 0 {
			r.tell(Point{What: fmt.Sprintf("%d of %d streams are open", i+1, r.config.Streams)})
		}
	}
	return nil
}

func (r *run) listen(ctx context.Context, stream grpc.ClientStream, i int) {
	var look func([]byte)
	if i%max(1, min(lookEvery, r.config.Streams/lookers)) == 0 {
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
