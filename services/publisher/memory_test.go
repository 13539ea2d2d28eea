package publisher_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry/metertest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

const (
	mib = 1 << 20
	// largestRequest is the limit of a request in bytes.
	largestRequest = 25 * mib
	// smallMemory is what the chart gives a small publisher.
	smallMemory = 256 * mib
)

// silentChain is a chain that takes questions and answers none until it is released.
type silentChain struct {
	server  *httptest.Server
	asked   chan struct{}
	release func()
}

func newSilentChain(t *testing.T) *silentChain {
	t.Helper()
	goOn := make(chan struct{})
	c := &silentChain{asked: make(chan struct{}, 10_000), release: sync.OnceFunc(func() { close(goOn) })}
	c.server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		c.asked <- struct{}{}
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(c.server.Close)
	t.Cleanup(c.release)
	return c
}

// largest is a request as long as allowed that asks a chain: an identity update with the
// contract signature, and behind it as many copies of an envelope as fit.
func largest(t *testing.T, kit *testkit.Kit, filling []byte) []byte {
	t.Helper()
	update, err := proto.Marshal(ofContract(kit.Client().Registration(time.Now())))
	require.NoError(t, err)
	request := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), update)
	one := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), filling)
	request = append(request, bytes.Repeat(one, (largestRequest-len(request))/len(one))...)
	require.LessOrEqual(t, len(request), largestRequest)
	return request
}

// While the largest requests wait for a chain that is silent, others publish: small ones
// as well as long ones. Those that wait are as many as the budget has room for and more.
func TestNobodyWaitsBehindARequestThatWaitsForAChain(t *testing.T) {
	kit := testkit.New(62)
	message, err := proto.Marshal(sized(t, kit, mib-1000))
	require.NoError(t, err)
	for name, filling := range map[string][]byte{
		"that can never be stored": nil,
		"of the largest envelopes": message,
	} {
		t.Run(name, func(t *testing.T) {
			chain := newSilentChain(t)
			m := metertest.New(t)
			r := start(t, measuredBy(m), func(c *publisher.Config, _ *publisher.Deps) {
				require.NoError(t, c.Wallet.Chains.UnmarshalText([]byte("eip155:1="+chain.server.URL)))
				c.Group.MemoryBytes = smallMemory
			})
			ctx, cancel := context.WithCancel(t.Context())
			var large sync.WaitGroup
			for range 6 {
				request := largest(t, kit, filling)
				large.Go(func() {
					for ctx.Err() == nil {
						_, err := r.raw(request)
						require.Error(t, err)
					}
				})
			}
			receive(t, chain.asked, "a question to the chain")
			require.Positive(t, m.Gauge("xmtp_budget_used_bytes", attribute.String("budget", "requests_checked")))
			require.Zero(t, m.Gauge("xmtp_budget_used_bytes", attribute.String("budget", "requests")))
			for range 50 {
				_, err := r.try(kit.GroupMessage(kit.Group(), 1000))
				require.NoError(t, err)
			}
			for range 3 {
				_, err := r.try(sized(t, kit, mib))
				require.NoError(t, err)
			}
			client := kit.Client()
			_, err := r.try(client.Registration(time.Now()), client.KeyPackage(time.Now()))
			require.NoError(t, err)
			cancel()
			chain.release()
			large.Wait()
			for _, budget := range []string{"requests", "requests_checked", "requests_waiting"} {
				require.Zero(t, m.Gauge("xmtp_budget_used_bytes", attribute.String("budget", budget)))
			}
		})
	}
}

// liveHeap is what the last collection found alive: unlike the heap's size it does not
// count what a busy machine has no time to collect.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// growth watches how much the live heap grows until stop is called.
func growth(t *testing.T) (stop func() uint64) {
	t.Helper()
	before := debug.SetGCPercent(10) // collections follow each other
	t.Cleanup(func() { debug.SetGCPercent(before) })
	runtime.GC()
	first, end, highest := liveHeap(), make(chan struct{}), make(chan uint64)
	go func() {
		most := first
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			most = max(most, liveHeap())
			select {
			case <-ticker.C:
			case <-end:
				highest <- most - first
				return
			}
		}
	}()
	return func() uint64 {
		close(end)
		return <-highest
	}
}

// Many of the largest requests at once take what they were reckoned to, whatever is in
// them, also when none comes to an end: each has an envelope on a topic that somebody
// else holds. They come one after the other, since what arrives is counted once it is there:
// the heap keeps to the budget, beside the one that comes and its copy.
//
// Proves I9.
func TestTheLargestRequestsKeepToTheMemory(t *testing.T) {
	// Beside the budget: one that comes, and its copy; and as much that the collector takes
	// for alive since it was made while it was at work.
	const atOnce, arriving = 12, 4
	kit := testkit.New(67)
	held, group := kit.Group(), kit.Group()
	request := func(envelope *backendv1.ClientEnvelope, change func(*backendv1.ClientEnvelope, int)) []byte {
		first, err := proto.Marshal(kit.GroupMessage(held, 1))
		require.NoError(t, err)
		encoded := make([]byte, 0, largestRequest)
		encoded = protowire.AppendBytes(protowire.AppendTag(encoded, 1, protowire.BytesType), first)
		for i := 0; ; i++ {
			change(envelope, i)
			one, err := proto.Marshal(envelope)
			require.NoError(t, err)
			if len(encoded)+protowire.SizeBytes(len(one))+1 > largestRequest {
				return encoded
			}
			encoded = protowire.AppendBytes(protowire.AppendTag(encoded, 1, protowire.BytesType), one)
		}
	}
	number := 0
	for name, c := range map[string]struct {
		envelope *backendv1.ClientEnvelope
		change   func(*backendv1.ClientEnvelope, int)
	}{
		// Welcomes are encoded again; their numbers make them different.
		"long welcomes": {kit.Welcome(make([]byte, 32), mib-1000), func(e *backendv1.ClientEnvelope, _ int) {
			number++
			binary.BigEndian.PutUint64(e.GetWelcomeMessage().GetV1().GetData(), uint64(number))
		}},
		"short messages": {kit.GroupMessage(group, 1000), func(e *backendv1.ClientEnvelope, _ int) {
			number++
			e.GetGroupMessage().SenderHmac = binary.BigEndian.AppendUint64(nil, uint64(number))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := metertest.New(t)
			r := start(t, measuredBy(m), func(c *publisher.Config, _ *publisher.Deps) {
				c.Group.MemoryBytes, c.Pool.StatementTimeout = smallMemory, time.Minute
			})
			r.publish(kit.GroupMessage(held, 1))
			release := r.hold(held)
			requests := make([][]byte, atOnce)
			for i := range requests {
				requests[i] = request(c.envelope, c.change)
			}
			stop := growth(t)
			used := func() int64 {
				return m.Gauge("xmtp_budget_used_bytes", attribute.String("budget", "requests")) +
					m.Gauge("xmtp_budget_used_bytes", attribute.String("budget", "requests_waiting"))
			}
			var callers sync.WaitGroup
			var ended atomic.Int64
			for _, encoded := range requests {
				usedBefore, endedBefore := used(), ended.Load()
				callers.Go(func() {
					_, err := r.raw(encoded)
					require.Contains(t, []codes.Code{codes.Unavailable, codes.DeadlineExceeded}, status.Code(err), "%v", err)
					ended.Add(1)
				})
				require.Eventually(t, func() bool { return used() != usedBefore || ended.Load() != endedBefore }, within, time.Millisecond, "it is there")
			}
			callers.Wait()
			highest := stop()
			t.Logf("%d MiB at most", highest/mib)
			require.Less(t, highest, uint64(smallMemory+arriving*largestRequest))
			release()
			_, err := r.raw(requests[0])
			require.NoError(t, err)
		})
	}
}
