// Package traffic is load on a backend whose every answer is recorded: publishers
// of all kinds of envelopes, readers that page, and streams that reconnect from
// their cursors and change their topics. What it does follows from a seed; when it
// does it follows from the backend.
package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
)

// Config says how much traffic there is.
type Config struct {
	// Endpoint is the gateway's host:port.
	Endpoint string
	Seed     uint64
	// Groups are the topics that all publishers write to.
	Groups                                     int
	Publishers, Readers, Streams, StaticStream int
	// Repeaters send identity updates, and then the same bytes again and again.
	Repeaters int
	// Pause is the mean time between two requests of a publisher.
	Pause time.Duration
	// Silence is how long a stream's client waits for any frame before it opens
	// the stream again; three keepalive intervals (API-113).
	Silence time.Duration
}

// callTimeout is the deadline of one call. Clients of the real kind wait longer.
const callTimeout = 10 * time.Second

// Traffic runs until it is stopped.
type Traffic struct {
	config   Config
	Recorder *Recorder
	topics   *directory
	sent     recent
	inboxes  inboxes
	// failovers are those so far.
	failovers atomic.Int64
	conns     []*grpc.ClientConn

	publishing, reading, streaming group
	streams                        []*subscriber
}

// group is goroutines that end together.
type group struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup
}

func (g *group) start(ctx context.Context) context.Context {
	ctx, g.cancel = context.WithCancel(ctx)
	return ctx
}

func (g *group) stop() {
	g.cancel()
	g.wait.Wait()
}

// Start begins all traffic. The backend need not be there yet.
func Start(ctx context.Context, config Config) (*Traffic, error) {
	t := &Traffic{config: config, Recorder: newRecorder(), topics: &directory{}}
	kit := testkit.New(config.Seed)
	groups := make([]testkit.Group, config.Groups)
	for i := range groups {
		groups[i] = kit.Group()
		t.topics.add(groups[i].Topic())
	}
	publishing, reading, streaming := t.publishing.start(ctx), t.reading.start(ctx), t.streaming.start(ctx)
	for i := range config.Publishers {
		conn, err := t.dial()
		if err != nil {
			return nil, err
		}
		p := newPublisher(t, conn, config.Seed+uint64(i)+1, groups)
		t.publishing.wait.Go(func() { p.run(publishing) })
	}
	for i := range config.Repeaters {
		conn, err := t.dial()
		if err != nil {
			return nil, err
		}
		r := &repeater{newPublisher(t, conn, config.Seed+1000+uint64(i), groups)}
		t.publishing.wait.Go(func() { r.run(publishing) })
	}
	for i := range config.Readers {
		conn, err := t.dial()
		if err != nil {
			return nil, err
		}
		r := &reader{traffic: t, client: backendv1.NewQueryServiceClient(conn), random: t.random("reader", i)}
		t.reading.wait.Go(func() { r.run(reading) })
	}
	for i := range config.Streams + config.StaticStream {
		conn, err := t.dial()
		if err != nil {
			return nil, err
		}
		s := newSubscriber(t, conn, i, i >= config.Streams)
		t.streams = append(t.streams, s)
		t.streaming.wait.Go(func() { s.run(streaming) })
	}
	return t, nil
}

// random is a generator that depends on the seed and the name of its owner only.
func (t *Traffic) random(name string, i int) *rand.Rand {
	var mixed uint64 = 14695981039346656037
	for _, b := range fmt.Appendf(nil, "%s %d", name, i) {
		mixed = (mixed ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(t.config.Seed, mixed))
}

func (t *Traffic) dial() (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(t.config.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * time.Second, Backoff: quickBackoff}))
	if err != nil {
		return nil, fmt.Errorf("reach the gateway: %w", err)
	}
	t.conns = append(t.conns, conn)
	return conn, nil
}

// FailedOver says that the primary is another server from now on, which may not
// have what was stored last.
func (t *Traffic) FailedOver() { t.failovers.Add(1) }

// StopPublishing ends publishers, once their last requests were answered or given
// up, and readers. Streams go on.
func (t *Traffic) StopPublishing() {
	t.publishing.stop()
	t.reading.stop()
}

// Settle subscribes every stream to every topic and waits until each has reached
// the heads. The error says who did not; the history then shows what is missing.
func (t *Traffic) Settle(ctx context.Context, heads map[topic.Topic]topic.SequenceID) error {
	for name := range heads {
		t.topics.add(name)
	}
	for _, s := range t.streams {
		s.wantAll()
	}
	var last error
	for {
		last = nil
		for _, s := range t.streams {
			if missing, name := s.behind(heads); missing > 0 {
				last = fmt.Errorf("%s has not reached the head of %d topics, such as %x", s.name, missing, string(name))
				break
			}
		}
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the streams and returns all that was seen. The caller adds the table.
func (t *Traffic) Stop() *check.History {
	t.streaming.stop()
	for _, conn := range t.conns {
		_ = conn.Close()
	}
	return t.Recorder.history()
}

// directory is the topics that are known to have, or to get, envelopes.
type directory struct {
	mu    sync.Mutex
	names []topic.Topic
	known map[topic.Topic]bool
}

func (d *directory) add(name topic.Topic) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[topic.Topic]bool{}
	}
	if !d.known[name] {
		d.known[name] = true
		d.names = append(d.names, name)
	}
}

func (d *directory) all() []topic.Topic {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[:len(d.names):len(d.names)]
}

// sleep waits and says whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
