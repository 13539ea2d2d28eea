package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Bounds of the histograms, in microseconds, and their precision.
const (
	lowestLatency  = 1
	highestLatency = 120_000_000
	digits         = 3
	shards         = 8
)

// recorder takes latencies from many goroutines.
type recorder struct {
	shards [shards]struct {
		sync.Mutex
		histogram *hdrhistogram.Histogram
		envelopes int
		_         [64]byte // keeps shards on lines of their own
	}
}

func newRecorder() *recorder {
	r := &recorder{}
	for i := range r.shards {
		r.shards[i].histogram = newHistogram()
	}
	return r
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(lowestLatency, highestLatency, digits)
}

func (r *recorder) record(latency time.Duration, envelopes int) {
	us := min(max(latency.Microseconds(), lowestLatency), highestLatency)
	s := &r.shards[int(us)%shards]
	s.Lock()
	_ = s.histogram.RecordValue(us) // it is within the bounds
	s.envelopes += envelopes
	s.Unlock()
}

// count adds envelopes without a latency.
func (r *recorder) count(shard, envelopes int) {
	s := &r.shards[shard%shards]
	s.Lock()
	s.envelopes += envelopes
	s.Unlock()
}

// drain moves what was recorded since the last call into a histogram.
func (r *recorder) drain(into *hdrhistogram.Histogram) (envelopes int) {
	for i := range r.shards {
		s := &r.shards[i]
		s.Lock()
		into.Merge(s.histogram)
		s.histogram.Reset()
		envelopes += s.envelopes
		s.envelopes = 0
		s.Unlock()
	}
	return envelopes
}

// Latency is a summary of a histogram, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	Max   float64 `json:"max_ms"`
}

func summary(h *hdrhistogram.Histogram) Latency {
	at := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	return Latency{Count: h.TotalCount(), Mean: h.Mean() / 1000, P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: float64(h.Max()) / 1000}
}

// Point is one second of a run.
type Point struct {
	// At is from the begin of the measurement, negative before it.
	At      time.Duration `json:"at_ns"`
	Counted bool          `json:"counted"`
	// What says what is being done before the measurement.
	What string `json:"-"`
	// Calls and Envelopes are per second; the envelopes of streams are those that
	// arrived.
	Calls     float64 `json:"calls_per_second"`
	Envelopes float64 `json:"envelopes_per_second"`
	Latency   Latency `json:"latency"`
	Errors    int     `json:"errors"`
}

// Result is a finished run.
type Result struct {
	Config   Config        `json:"config"`
	Duration time.Duration `json:"duration_ns"`
	// Calls and Envelopes are over the whole run.
	Calls              int64   `json:"calls"`
	CallsPerSecond     float64 `json:"calls_per_second"`
	Envelopes          int     `json:"envelopes"`
	EnvelopesPerSecond float64 `json:"envelopes_per_second"`
	Errors             int     `json:"errors"`
	FirstError         string  `json:"first_error,omitempty"`
	// Call is the latency of calls; Delivery from the publish call to the arrival
	// on a stream, where there are streams.
	Call     Latency `json:"call_latency"`
	Delivery Latency `json:"delivery_latency"`
	Points   []Point `json:"points"`
}

// measure waits for the warm-up, then takes a point a second until the duration
// is over.
func (r *run) measure(ctx context.Context) (*Result, error) {
	if err := r.tellUntil(ctx, time.Now().Add(r.config.Warmup), "warming up"); err != nil {
		return nil, err
	}
	throwAway := newHistogram()
	r.called.drain(throwAway)
	r.delivered.drain(throwAway)
	r.failure.mu.Lock()
	failedBefore := r.failure.count
	r.failure.mu.Unlock()

	result := &Result{Config: r.config}
	calls, deliveries := newHistogram(), newHistogram()
	begun := time.Now()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last, errorsBefore := begun, failedBefore
	for time.Since(begun) < r.config.Duration {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ticker.C:
		}
		now := time.Now()
		point := r.point(calls, deliveries, result, now.Sub(last))
		point.At, point.Counted = now.Sub(begun), true
		r.failure.mu.Lock()
		point.Errors, errorsBefore = r.failure.count-errorsBefore, r.failure.count
		r.failure.mu.Unlock()
		last = now
		result.Points = append(result.Points, point)
		r.tell(point)
	}
	result.Duration = last.Sub(begun)
	result.Call, result.Delivery = summary(calls), summary(deliveries)
	result.Calls = calls.TotalCount()
	result.CallsPerSecond = float64(result.Calls) / result.Duration.Seconds()
	result.EnvelopesPerSecond = float64(result.Envelopes) / result.Duration.Seconds()
	r.failure.mu.Lock()
	defer r.failure.mu.Unlock()
	result.Errors = r.failure.count - failedBefore
	if r.failure.first != nil {
		result.FirstError = r.failure.first.Error()
	}
	if result.Calls == 0 && r.failure.first != nil {
		return result, fmt.Errorf("no call succeeded: %w", r.failure.first)
	}
	return result, nil
}

// point takes what happened since the last one. With streams, what arrived counts.
func (r *run) point(calls, deliveries *hdrhistogram.Histogram, result *Result, length time.Duration) Point {
	now, arrived := newHistogram(), newHistogram()
	envelopes := r.called.drain(now)
	delivered := r.delivered.drain(arrived)
	calls.Merge(now)
	deliveries.Merge(arrived)
	point := Point{Calls: float64(now.TotalCount()) / length.Seconds(), Latency: summary(now)}
	if r.config.hasStreams() {
		envelopes = delivered
		point.Latency = summary(arrived)
	}
	point.Envelopes = float64(envelopes) / length.Seconds()
	result.Envelopes += envelopes
	return point
}

func (c Config) hasStreams() bool {
	return c.Workload == FanOut || c.Workload == ManyTopics || c.Workload == IdleStreams
}

func (r *run) tell(p Point) {
	if r.progress != nil {
		r.progress(p)
	}
}

// tellUntil waits and tells what for.
func (r *run) tellUntil(ctx context.Context, until time.Time, what string) error {
	for left := time.Until(until); left > 0; left = time.Until(until) {
		r.tell(Point{At: -left, What: what})
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(left, time.Second)):
		}
	}
	return nil
}
