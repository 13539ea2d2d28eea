package gateway_test

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// BenchmarkUnary compares a call of 1 KiB each way to a role directly with the
// same call through the gateway. The difference of cpu-us/op is the gateway's own
// cost; everything runs in this process. See docs/benchmarks/gateway.md.
func BenchmarkUnary(b *testing.B) {
	t := testing.TB(b)
	payload := make([]byte, 1024)
	role := behavingRole()
	role.publish = func(context.Context, *backendv1.PublishRequest) (*backendv1.PublishResponse, error) {
		return &backendv1.PublishResponse{EnvelopeMetas: []*backendv1.EnvelopeMeta{{Topic: &backendv1.Topic{Topic: payload}}}}, nil
	}
	role.start(t, "")
	f := startGateway(t, role, nil)
	h1, h2 := transport(t, false), transport(t, true)
	h1.MaxIdleConnsPerHost = 64
	for _, c := range []struct {
		name string
		caller
	}{
		{"direct", nativeCaller(dial(t, role.address))},
		{"native", nativeCaller(f.conn)},
		{"grpcweb-h1", connectCaller("http://"+f.address, h1, false, connect.WithGRPCWeb())},
		{"grpcweb-h2", connectCaller("http://"+f.address, h2, false, connect.WithGRPCWeb())},
		{"json-h1", connectCaller("http://"+f.address, h1, false, connect.WithProtoJSON())},
	} {
		b.Run(c.name, func(b *testing.B) { measure(b, c.caller, payload) })
	}
}

const benchCallers = 16

func measure(b *testing.B, c caller, payload []byte) {
	request := &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{groupMessage(payload)}}
	call := func() time.Duration {
		begun := time.Now()
		_, err := c.publish(b.Context(), request)
		require.NoError(b, err)
		return time.Since(begun)
	}
	for range 100 {
		call()
	}
	latencies := make([][]time.Duration, benchCallers)
	var running sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu(b)
	for i := range benchCallers {
		running.Go(func() {
			for range max(1, b.N/benchCallers) {
				latencies[i] = append(latencies[i], call())
			}
		})
	}
	running.Wait()
	used := cpu(b) - before
	b.StopTimer()
	all := slices.Concat(latencies...)
	slices.Sort(all)
	b.ReportMetric(float64(used.Microseconds())/float64(len(all)), "cpu-us/op")
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
	// One caller alone: what a call takes when nothing else is going on.
	alone := make([]time.Duration, 300)
	for i := range alone {
		alone[i] = call()
	}
	slices.Sort(alone)
	b.ReportMetric(float64(alone[len(alone)/2].Microseconds()), "alone-p50-us")
}

func cpu(b *testing.B) time.Duration {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
