package streamer_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// fill stores n rows of a payload size on topics, without notices.
func (w *writer) fill(n, size int, names []topic.Topic) {
	w.t.Helper()
	const part = 4000
	for n > 0 {
		batch := make([]topic.Topic, min(n, part))
		for i := range batch {
			batch[i] = names[i%len(names)]
		}
		w.storeSized(size, batch...)
		n -= len(batch)
	}
}

// drain reads frames of a stream until it has n envelopes, without looking at
// more than it must.
func drain(tb testing.TB, conn *grpc.ClientConn, names []topic.Topic, n int) time.Duration {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The client counts envelopes without making objects of them: the two cores
	// are the server's.
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/"+streamer.ServiceName+"/Subscribe", grpc.ForceCodecV2(rpc.Codec{}))
	require.NoError(tb, err)
	u := &backendv1.SubscribeRequest_Update{Id: 1}
	for _, name := range names {
		u.Adds = append(u.Adds, query(name, 0))
	}
	begun := time.Now()
	require.NoError(tb, stream.SendMsg(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: u}}))
	for n > 0 {
		var frame rpc.Frame
		require.NoError(tb, stream.RecvMsg(&frame))
		n -= countEnvelopes(frame.Take())
	}
	return time.Since(begun)
}

func countEnvelopes(frame []byte) (n int) {
	number, _, size := protowire.ConsumeTag(frame)
	if number != 3 {
		return 0
	}
	messages, _ := protowire.ConsumeBytes(frame[size:])
	for ; len(messages) > 0; n++ {
		_, _, size := protowire.ConsumeField(messages)
		messages = messages[size:]
	}
	return n
}

// BenchmarkCatchUp compares a stream that catches up on 200,000 rows of 1 KiB on
// 100 topics with pgx reading the same rows, in interleaved rounds.
func BenchmarkCatchUp(b *testing.B) {
	r := start(b)
	const rows = 200_000
	names := groups(0, 100)
	r.writer.fill(rows, 1024, names)
	conn, err := r.writer.db.Acquire(b.Context())
	require.NoError(b, err)
	defer conn.Release()
	raw := make([][]byte, len(names))
	for i, name := range names {
		raw[i] = []byte(name)
	}
	_, err = r.writer.db.Exec(b.Context(), "ANALYZE envelopes")
	require.NoError(b, err)
	var ours, alone []float64
	for b.Loop() {
		begun := time.Now()
		result, err := conn.Query(b.Context(), `SELECT topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, payload
			FROM envelopes WHERE topic = ANY($1) AND sequence_id > 0 ORDER BY topic, sequence_id`, raw)
		require.NoError(b, err)
		n := 0
		var name, hash, payload []byte
		var id, ns int64
		var expiry *int64
		var flag bool
		_, err = pgx.ForEachRow(result, []any{&name, &id, &ns, &expiry, &hash, &flag, &payload}, func() error { n++; return nil })
		require.NoError(b, err)
		require.Equal(b, rows, n)
		alone = append(alone, rows/time.Since(begun).Seconds())
		ours = append(ours, rows/drain(b, r.conn, names, rows).Seconds())
	}
	slices.Sort(ours)
	slices.Sort(alone)
	b.ReportMetric(ours[len(ours)/2], "stream-rows/s")
	b.ReportMetric(alone[len(alone)/2], "pgx-rows/s")
	b.ReportMetric(100*ours[len(ours)/2]/alone[len(alone)/2], "%")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHundredThousandTopics is one update that adds 100,000 topics.
func BenchmarkHundredThousandTopics(b *testing.B) {
	r := start(b)
	names := groups(0, 100_000)
	r.writer.fill(len(names), 32, names)
	var took []float64
	for b.Loop() {
		s := subscribe(b, r.client)
		u := make([]*backendv1.TopicQuery, len(names))
		for i, name := range names {
			u[i] = query(name, 1<<60)
		}
		begun := time.Now()
		s.awaitApplied(s.update(u))
		took = append(took, time.Since(begun).Seconds())
		s.close()
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2], "s/Applied")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLive is the time from the start of the storing transaction to the
// client, at 500 envelopes a second on 1,000 topics and 50 streams.
func BenchmarkLive(b *testing.B) {
	r := start(b)
	names := groups(0, 1000)
	var mu sync.Mutex
	var took []time.Duration
	begun := map[uint64]time.Time{}
	for i := range 50 {
		s := subscribe(b, r.client, func(s *subscriber) {
			s.onEnvelope = func(e *backendv1.ServerEnvelope) {
				mu.Lock()
				defer mu.Unlock()
				if at, known := begun[e.Meta.Cursor.SequenceId]; known {
					took = append(took, time.Since(at))
				}
			}
		})
		s.add(names[i*20 : (i+1)*20]...)
	}
	pace := time.NewTicker(2 * time.Millisecond)
	defer pace.Stop()
	n := 0
	for b.Loop() {
		<-pace.C
		n++
		at := time.Now()
		rows := r.writer.store(names[(n*7)%len(names)])
		mu.Lock()
		begun[uint64(rows[0].id)] = at
		mu.Unlock()
		r.writer.announce(rows...)
	}
	time.Sleep(500 * time.Millisecond) // what is late shows as missing
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(took)
	b.ReportMetric(float64(len(took))/float64(n), "delivered")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFanOut is one envelope of 1 KiB to 1,000 streams.
func BenchmarkFanOut(b *testing.B) {
	r := start(b)
	const streams = 1000
	var got sync.WaitGroup
	for range streams {
		s := subscribe(b, r.client, func(s *subscriber) { s.onEnvelope = func(*backendv1.ServerEnvelope) { got.Done() } })
		s.add(group(1))
	}
	for b.Loop() {
		rows := r.writer.storeSized(1024, group(1))
		got.Add(streams)
		r.writer.announce(rows...)
		got.Wait()
	}
	b.ReportMetric(float64(b.N*streams)/b.Elapsed().Seconds(), "deliveries/s")
}

// BenchmarkIdleStreams is what an idle bidirectional stream with 10 topics of
// its own costs in this process, its client included, 100 streams a connection.
func BenchmarkIdleStreams(b *testing.B) {
	for _, perConn := range []int{100, 1} {
		b.Run(fmt.Sprint(perConn, " a connection"), func(b *testing.B) {
			for b.Loop() {
				const streams = 1000
				r := start(b, func(c *streamer.Config, _ *streamer.Deps) {})
				before := inUse()
				ctx, cancel := context.WithCancel(context.Background())
				client := r.client
				for i := range streams {
					if i%perConn == 0 {
						client = backendv1.NewSubscriptionServiceClient(dial(b, r.address))
					}
					stream, err := client.Subscribe(ctx)
					require.NoError(b, err)
					u := &backendv1.SubscribeRequest_Update{Id: 1}
					for _, name := range groups(i*10, i*10+10) {
						u.Adds = append(u.Adds, query(name, 0))
					}
					require.NoError(b, stream.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: u}}))
					for range 2 {
						_, err = stream.Recv()
						require.NoError(b, err)
					}
				}
				b.ReportMetric(float64(inUse()-before)/streams/1000, "kB/stream-with-client")
				cancel()
			}
		})
	}
}

// inUse is heap and stacks after a collection.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapInuse + stats.StackInuse
}
