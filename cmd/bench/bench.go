// Package bench puts load on a backend and measures what comes back: throughput,
// and latency in HDR histograms. xmtpctl bench and make bench use it. It sends
// raw bytes made in advance, so that its own cost stays small.
package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

// Workload names what is done.
type Workload string

// The workloads.
const (
	Publish     Workload = "publish"      // group messages
	Mixed       Workload = "mixed"        // the calls of production in their shares
	FanOut      Workload = "fan-out"      // every message to every stream
	CatchUp     Workload = "catch-up"     // the history of topics on new streams
	ManyTopics  Workload = "many-topics"  // streams of many topics, few of them busy
	IdleStreams Workload = "idle-streams" // streams that hardly get anything
	Query       Workload = "query"        // pages of history
)

// Workloads are all of them, with what they do.
var Workloads = []struct {
	Name  Workload
	About string
}{
	{Publish, "publish group messages, one or more a request"},
	{Mixed, "per 1,000 calls 650 GetInboxIds, 200 QueryNewest, 134 Query and 16 Publish"},
	{FanOut, "publish to one topic that every stream follows"},
	{CatchUp, "open streams from the beginning of topics and read them to their heads"},
	{ManyTopics, "publish to streams that follow many topics each"},
	{IdleStreams, "hold streams open, with a trickle of messages"},
	{Query, "read pages of history"},
}

// Config describes a run.
type Config struct {
	Endpoint string
	// PublishEndpoint is where publishes go; empty is Endpoint. It lets streams be
	// opened at a role.
	PublishEndpoint string
	TLS             bool
	// TLSServerName is the name of the server's certificate; empty is the endpoint's.
	TLSServerName string
	Workload      Workload
	// Warmup runs before Duration and is not counted.
	Warmup, Duration time.Duration
	// Concurrency is how many callers wait for their answers at the same time.
	Concurrency int
	// Connections are shared by callers and streams.
	Connections int
	// Size is the bytes of a message's ciphertext.
	Size int
	// PerRequest is how many envelopes a publish request holds.
	PerRequest int
	// Topics is how many topics there are: per stream with many-topics.
	Topics int
	// Skew makes some topics busier: 0 is even, above 1 a Zipf exponent.
	Skew float64
	// Streams is how many streams are open.
	Streams int
	// Rate is publish requests a second over all callers; 0 is as fast as answers
	// come.
	Rate float64
	// Rows is how many envelopes each topic gets before a read workload.
	Rows int
	// Page is the limit of a query.
	Page int
	Seed uint64
}

// Default is a run that fits a small machine.
func Default(w Workload) Config {
	c := Config{
		Endpoint: "127.0.0.1:5050", Workload: w, Warmup: 2 * time.Second, Duration: 15 * time.Second,
		Concurrency: 64, Connections: 4, Size: 1024, PerRequest: 1, Topics: 1000, Streams: 500, Rows: 1000, Page: 100, Seed: 1,
	}
	switch w {
	case FanOut:
		c.Topics, c.Concurrency, c.Connections = 1, 4, 8
	case CatchUp:
		c.Topics, c.Concurrency = 8, 4
	case ManyTopics:
		c.Topics, c.Streams, c.Concurrency, c.Rate = 5000, 10, 16, 500
	case IdleStreams:
		c.Topics, c.Concurrency, c.Rate, c.Connections = 10, 4, 10, 8
	case Query:
		c.Topics, c.Concurrency, c.Rows = 100, 8, 200
	case Mixed:
		c.Topics, c.Rows = 200, 50
	}
	return c
}

// Validate names each flag that is out of range.
func (c Config) Validate() error {
	var errs []error
	known := slices.ContainsFunc(Workloads, func(w struct {
		Name  Workload
		About string
	}) bool {
		return w.Name == c.Workload
	})
	if !known {
		var names []string
		for _, w := range Workloads {
			names = append(names, string(w.Name))
		}
		errs = append(errs, fmt.Errorf("there is no workload %q, expected one of %s", c.Workload, strings.Join(names, ", ")))
	}
	for _, positive := range []struct {
		name  string
		value int
	}{
		{"concurrency", c.Concurrency}, {"connections", c.Connections}, {"size", c.Size - markerBytes + 1}, {"per-request", c.PerRequest},
		{"topics", c.Topics}, {"streams", c.Streams}, {"rows", c.Rows}, {"page", c.Page},
	} {
		if positive.value < 1 {
			errs = append(errs, fmt.Errorf("--%s is too small", positive.name))
		}
	}
	if c.Duration < time.Second {
		errs = append(errs, fmt.Errorf("--duration is %v, expected at least 1s", c.Duration))
	}
	if c.Warmup < 0 || c.Rate < 0 {
		errs = append(errs, errors.New("--warmup and --rate cannot be negative"))
	}
	if c.Skew != 0 && c.Skew <= 1 {
		errs = append(errs, fmt.Errorf("--skew is %v, expected 0 or above 1", c.Skew))
	}
	return errors.Join(errs...)
}

// Run puts the load on and returns the figures. progress, which may be nil, is
// told each second; during the preparation and warm-up with Counted false.
func Run(ctx context.Context, config Config, progress func(Point)) (*Result, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	run, err := newRun(config, progress)
	if err != nil {
		return nil, err
	}
	defer run.close()
	switch config.Workload {
	case Publish:
		return run.calls(ctx, run.publishOnce)
	case Mixed:
		return run.mixed(ctx)
	case Query:
		return run.query(ctx)
	case CatchUp:
		return run.catchUp(ctx)
	default:
		return run.streams(ctx)
	}
}

// run is the state of one Run.
type run struct {
	config   Config
	progress func(Point)
	conns    []*grpc.ClientConn
	// publishConns are conns unless publishes go elsewhere.
	publishConns []*grpc.ClientConn
	messages     []message
	made         atomic.Uint64
	// calledLatency is of calls, deliveryLatency from publish call to arrival.
	called, delivered *recorder
	failure           failure
}

// failure keeps the first error and how many there were.
type failure struct {
	mu    sync.Mutex
	first error
	count int
}

func (f *failure) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if f.first == nil {
		f.first = err
	}
}

const (
	// maxMessageBytes is above every limit of the backend.
	maxMessageBytes = 64 << 20
	// Fixed windows keep grpc-go from sending a ping for every message it receives,
	// which would be counted as work of the backend.
	streamWindow     = 1 << 20
	connectionWindow = 8 << 20
)

func newRun(config Config, progress func(Point)) (*run, error) {
	r := &run{config: config, progress: progress, called: newRecorder(), delivered: newRecorder()}
	transport := insecure.NewCredentials()
	if config.TLS {
		transport = credentials.NewTLS(&tls.Config{ServerName: config.TLSServerName, MinVersion: tls.VersionTLS12})
	}
	dial := func(endpoint string) (conns []*grpc.ClientConn, err error) {
		for range config.Connections {
			conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(transport),
				grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connectionWindow),
				grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rpc.Codec{}), grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)))
			if err != nil {
				return conns, fmt.Errorf("reach %s: %w", endpoint, err)
			}
			conns = append(conns, conn)
		}
		return conns, nil
	}
	var err error
	if r.conns, err = dial(config.Endpoint); err != nil {
		r.close()
		return nil, err
	}
	r.publishConns = r.conns
	if config.PublishEndpoint != "" {
		if r.publishConns, err = dial(config.PublishEndpoint); err != nil {
			r.close()
			return nil, err
		}
	}
	r.messages, err = newMessages(config)
	return r, err
}

func (r *run) close() {
	for _, conn := range append(r.conns, r.publishConns...) {
		_ = conn.Close() // a second time does nothing
	}
}

// caller is one of the concurrent callers.
type caller struct {
	conn, publishConn *grpc.ClientConn

	random *rand.Rand
	zipf   *rand.Zipf
}

func (r *run) caller(i int) *caller {
	c := &caller{conn: r.conns[i%len(r.conns)], publishConn: r.publishConns[i%len(r.publishConns)],
		random: rand.New(rand.NewPCG(r.config.Seed, uint64(i)))}
	if r.config.Skew > 1 {
		c.zipf = rand.NewZipf(c.random, r.config.Skew, 1, uint64(len(r.messages)-1))
	}
	return c
}

// pick draws a topic.
func (c *caller) pick(topics int) int {
	if c.zipf != nil {
		return int(c.zipf.Uint64())
	}
	return c.random.IntN(topics)
}

// operation is one call. It returns how many envelopes it moved.
type operation func(ctx context.Context, c *caller) (envelopes int, err error)

// calls runs callers that each wait for their answer, and measures.
func (r *run) calls(ctx context.Context, do operation) (*Result, error) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	var wait sync.WaitGroup
	pace := newPace(r.config.Rate)
	for i := range r.config.Concurrency {
		wait.Go(func() {
			c := r.caller(i)
			for pace.wait(working) {
				begun := time.Now()
				envelopes, err := do(working, c)
				if working.Err() != nil {
					return
				}
				if err != nil {
					r.failure.add(err)
					if pauseAfterFailure(working) {
						continue
					}
					return
				}
				r.called.record(time.Since(begun), envelopes)
			}
		})
	}
	result, err := r.measure(ctx)
	stop()
	wait.Wait()
	return result, err
}

// pauseAfterFailure keeps a backend that is away from being flooded.
func pauseAfterFailure(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}

// pace hands out turns at a rate.
type pace struct {
	every time.Duration
	next  atomic.Int64
	begun time.Time
}

func newPace(rate float64) *pace {
	p := &pace{begun: time.Now()}
	if rate > 0 {
		p.every = time.Duration(float64(time.Second) / rate)
	}
	return p
}

// wait returns at the caller's turn, false when ctx has ended.
func (p *pace) wait(ctx context.Context) bool {
	if p.every == 0 {
		return ctx.Err() == nil
	}
	at := p.begun.Add(time.Duration(p.next.Add(1)) * p.every)
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
