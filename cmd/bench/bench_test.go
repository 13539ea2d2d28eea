package bench

import (
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/payload"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

func TestRequestsAreValidAndNeverTheSame(t *testing.T) {
	config := Default(Publish)
	config.Topics = 3
	messages, err := newMessages(config)
	require.NoError(t, err)
	r := &run{config: config, messages: messages, called: newRecorder()}
	c := &caller{random: rand.New(rand.NewPCG(1, 1))}
	seen := map[string]bool{}
	for range 50 {
		before := time.Now()
		encoded := r.request(c, 4)
		request := &backendv1.PublishRequest{}
		require.NoError(t, proto.Unmarshal(encoded, request))
		require.Len(t, request.GetEnvelopes(), 4)
		for _, envelope := range request.GetEnvelopes() {
			raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(envelope)
			require.NoError(t, err)
			_, err = payload.Parse(raw, 1<<20)
			require.NoError(t, err)
			require.False(t, seen[string(raw)], "a message was made twice")
			seen[string(raw)] = true
		}
		found := 0
		sentTimes(encoded, func(sent time.Time) {
			found++
			require.WithinRange(t, sent, before, time.Now())
		})
		require.Equal(t, 4, found)
		require.Equal(t, 4, countEnvelopes(encoded))
	}
}

func TestCountingStopsAtNonsense(t *testing.T) {
	require.Zero(t, countEnvelopes([]byte{0xff}))
	require.Zero(t, countEnvelopes([]byte{0x0a, 0xff, 1, 2}))
	sentTimes([]byte("xmtpbenc"), func(time.Time) { require.Fail(t, "there is no time before the magic number") })
}

func TestWrongFlagsAreNamed(t *testing.T) {
	require.NoError(t, Default(FanOut).Validate())
	for flag, change := range map[string]func(*Config){
		"--concurrency": func(c *Config) { c.Concurrency = 0 },
		"--size":        func(c *Config) { c.Size = markerBytes - 1 },
		"--topics":      func(c *Config) { c.Topics = -1 },
		"--duration":    func(c *Config) { c.Duration = time.Millisecond },
		"--skew":        func(c *Config) { c.Skew = 0.5 },
		"--rate":        func(c *Config) { c.Rate = -1 },
		"workload":      func(c *Config) { c.Workload = "dance" },
	} {
		config := Default(Publish)
		change(&config)
		require.ErrorContains(t, config.Validate(), flag)
	}
}

func TestSkewFavoursSomeTopics(t *testing.T) {
	config := Default(Publish)
	config.Skew, config.Topics = 1.5, 100
	messages, err := newMessages(config)
	require.NoError(t, err)
	counts := make([]int, 100)
	c := (&run{config: config, messages: messages, conns: make([]*grpc.ClientConn, 1), publishConns: make([]*grpc.ClientConn, 1)}).caller(0)
	for range 10_000 {
		counts[c.pick(100)]++
	}
	require.Greater(t, counts[0], 10*counts[20])
}

func TestLatenciesAddUp(t *testing.T) {
	r := newRecorder()
	for i := 1; i <= 1000; i++ {
		r.record(time.Duration(i)*time.Millisecond, 2)
	}
	r.record(time.Hour, 1) // beyond the histogram: counted at its end
	h := newHistogram()
	require.Equal(t, 2001, r.drain(h))
	got := summary(h)
	require.EqualValues(t, 1001, got.Count)
	require.InEpsilon(t, 500, got.P50, 0.01)
	require.InEpsilon(t, 990, got.P99, 0.01)
	require.InEpsilon(t, 120_000, got.Max, 0.01)
	require.Zero(t, r.drain(newHistogram()), "what was drained is gone")
}

func TestChartsAreWellFormed(t *testing.T) {
	result := &Result{Config: Default(FanOut)}
	for i := range 20 {
		result.Points = append(result.Points, Point{Envelopes: float64(i * 1000), Latency: Latency{P50: 1, P99: float64(i)}})
	}
	charts := map[string][]byte{
		"run":   result.Chart("fan-out <of> one & many"),
		"empty": (&Result{Config: Default(Mixed)}).Chart("nothing"),
		"bars":  Bars("ratios", []Bar{{Name: "publish", Ours: 9000, Against: 10000, OursName: "ours", AgainstName: "pgbench", Target: 0.8}}),
	}
	for name, chart := range charts {
		decoder := xml.NewDecoder(strings.NewReader(string(chart)))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
		}
		require.NotContains(t, string(chart), "NaN", name)
	}
	require.Contains(t, string(charts["bars"]), "0.90")
}
