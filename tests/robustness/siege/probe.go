package siege

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

const (
	probeEvery  = 50 * time.Millisecond
	probeWithin = 10 * time.Second // as long as a client waits at most
)

// Probe is an ordinary client on a connection of its own: it publishes, queries
// and looks for the newest in turn, one call every 50 ms whether or not the last
// was answered, and follows its topic on a stream.
type Probe struct {
	conn  *grpc.ClientConn
	kit   *testkit.Kit
	group testkit.Group
	topic *backendv1.Topic
	stop  context.CancelFunc
	wait  sync.WaitGroup

	mu     sync.Mutex
	sample *Sample
}

// Sample is what became of the probes of a while.
type Sample struct {
	wait sync.WaitGroup

	mu        sync.Mutex
	asked     int
	latencies []time.Duration // of those that were answered
	meanwhile int             // answered before the next sample began
	failures  map[codes.Code]int
	streams   int // that ended
}

// StartProbe dials and begins to ask. The first sample is of no interest.
func StartProbe(ctx context.Context, address string, transport credentials.TransportCredentials) (*Probe, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(transport))
	if err != nil {
		return nil, err
	}
	kit := testkit.New(uint64(time.Now().UnixNano()))
	group := kit.Group()
	p := &Probe{conn: conn, kit: kit, group: group, topic: &backendv1.Topic{Topic: []byte(group.Topic())}, sample: newSample()}
	ctx, p.stop = context.WithCancel(ctx)
	p.wait.Go(func() { p.ask(ctx) })
	p.wait.Go(func() { p.follow(ctx) })
	return p, nil
}

func newSample() *Sample { return &Sample{failures: map[codes.Code]int{}} }

// Next begins another sample and returns the last one once all of it is known.
func (p *Probe) Next() *Sample {
	p.mu.Lock()
	last := p.sample
	p.sample = newSample()
	p.mu.Unlock()
	last.mu.Lock()
	last.meanwhile = len(last.latencies)
	last.mu.Unlock()
	last.wait.Wait()
	return last
}

// current is the sample to which a probe belongs that begins now.
func (p *Probe) current() *Sample {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sample.wait.Add(1)
	return p.sample
}

// Stop ends the probe.
func (p *Probe) Stop() {
	p.stop()
	p.wait.Wait()
	_ = p.conn.Close()
}

func (p *Probe) ask(ctx context.Context) {
	ticks := time.NewTicker(probeEvery)
	defer ticks.Stop()
	publishes, queries := backendv1.NewPublishServiceClient(p.conn), backendv1.NewQueryServiceClient(p.conn)
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		var call func(context.Context) error
		switch n % 3 {
		case 0:
			request := &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{p.kit.GroupMessage(p.group, 300)}}
			call = func(ctx context.Context) error { _, err := publishes.Publish(ctx, request); return err }
		case 1:
			request := &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{{Topic: p.topic}}, Limit: 10}
			call = func(ctx context.Context) error { _, err := queries.Query(ctx, request); return err }
		default:
			request := &backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{p.topic}}
			call = func(ctx context.Context) error { _, err := queries.QueryNewest(ctx, request); return err }
		}
		sample := p.current()
		p.wait.Go(func() {
			defer sample.wait.Done()
			sample.measure(ctx, call)
		})
	}
}

func (s *Sample) measure(ctx context.Context, call func(context.Context) error) {
	limited, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	begun := time.Now()
	err := call(limited)
	took := time.Since(begun)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil: // nobody asks any more
	case err != nil:
		s.asked++
		s.failures[status.Code(err)]++
	default:
		s.asked++
		s.latencies = append(s.latencies, took)
	}
}

// follow keeps a stream open and counts how often it ends.
func (p *Probe) follow(ctx context.Context) {
	client := backendv1.NewSubscriptionServiceClient(p.conn)
	for ctx.Err() == nil {
		stream, err := client.SubscribeStatic(ctx, &backendv1.SubscribeStaticRequest{Topics: []*backendv1.TopicQuery{{Topic: p.topic}}}, grpc.WaitForReady(true))
		for err == nil {
			_, err = stream.Recv()
		}
		if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			sample := p.current()
			sample.mu.Lock()
			sample.streams++
			sample.mu.Unlock()
			sample.wait.Done()
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Asked counts the calls of the sample.
func (s *Sample) Asked() int { return s.asked }

// Answered counts those that were answered.
func (s *Sample) Answered() int { return len(s.latencies) }

// Share is the part of the calls that was answered, of 1.
func (s *Sample) Share() float64 { return float64(len(s.latencies)) / float64(max(s.asked, 1)) }

// Percentile is a latency that so many percent of the answers did not take longer
// than.
func (s *Sample) Percentile(percent int) time.Duration {
	if len(s.latencies) == 0 {
		return probeWithin
	}
	slices.Sort(s.latencies)
	return s.latencies[min(len(s.latencies)*percent/100, len(s.latencies)-1)]
}
