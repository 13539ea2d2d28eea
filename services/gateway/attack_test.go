package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// hostile is a client that speaks HTTP/2 as it likes, from an address of its own.
type hostile struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	block  func(contentType string, more ...hpack.HeaderField) []byte
	next   uint32
}

func attackFrom(t *testing.T, f *front, address string) *hostile {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", f.address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
	_, block := speaks(conn)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return &hostile{t: t, conn: conn, framer: framer, block: block, next: 1}
}

func (h *hostile) open(more ...hpack.HeaderField) (id uint32) {
	h.t.Helper()
	id = h.next
	h.next += 2
	block := h.block("application/grpc", more...)
	part := min(len(block), 16384)
	require.NoError(h.t, h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:part], EndHeaders: part == len(block)}))
	for block = block[part:]; len(block) > 0; block = block[part:] {
		part = min(len(block), 16384)
		require.NoError(h.t, h.framer.WriteContinuation(id, part == len(block), block[:part]))
	}
	return id
}

// ask is a whole call of Query.
func (h *hostile) ask(more ...hpack.HeaderField) (id uint32) {
	h.t.Helper()
	id = h.open(more...)
	require.NoError(h.t, h.framer.WriteData(id, true, make([]byte, 5)))
	return id
}

// status waits for the end of a call.
func (h *hostile) status(id uint32) string {
	h.t.Helper()
	for {
		frame, err := h.framer.ReadFrame()
		require.NoError(h.t, err)
		headers, ok := frame.(*http2.MetaHeadersFrame)
		if !ok || headers.StreamID != id {
			continue
		}
		for _, field := range headers.Fields {
			if field.Name == "grpc-status" {
				return field.Value
			}
		}
	}
}

// ended waits until the gateway has closed the connection.
func (h *hostile) ended() {
	h.t.Helper()
	_, err := io.Copy(io.Discard, h.conn)
	var timeout net.Error
	if err != nil {
		require.False(h.t, errors.As(err, &timeout) && timeout.Timeout(), "the connection is still open")
	}
}

// C1: a budget is not taken by promises, and slow bodies of one client are not those
// of another.
func TestSlowBodiesAffectNobodyElse(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	slow := 0
	for range 41 {
		attacker := attackFrom(t, f, "127.0.0.2")
		go func() { _, _ = io.Copy(io.Discard, attacker.conn) }()
		for range 50 {
			id := attacker.open()
			require.NoError(t, attacker.framer.WriteData(id, false, []byte{0, 0x01, 0x80, 0, 0, 1})) // 24 MiB, of which one byte
			slow++
		}
	}
	require.GreaterOrEqual(t, slow, 2048)
	require.Eventually(t, func() bool { // the calls are in progress, as many as one address may have
		return f.meter.Count("grpc_server_in_flight") >= 1000
	}, soon, 10*time.Millisecond)
	require.Zero(t, f.meter.Gauge("xmtp_gateway_body_bytes"))
	for range 100 {
		_, err := nativeCaller(f.conn).publish(t.Context(), &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{groupMessage(make([]byte, 100))}})
		require.NoError(t, err)
	}
	_, err := nativeCaller(f.conn).publish(t.Context(), &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{groupMessage(make([]byte, 20<<20))}})
	require.NoError(t, err, "neither are large bodies")
}

// pageRole answers each Query with the same bytes: what is held of them is held by
// the gateway.
func pageRole(t *testing.T, answer []byte) (role *fakeRole, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := rpc.NewServer(rpc.Config{StopTimeout: soon}, rpc.ServerDeps{Metrics: telemetry.Discard(), Logger: slog.New(slog.DiscardHandler), MaxRequestBytes: 1 << 20},
		rpc.Service{Name: "xmtp.backend.v1.QueryService", Methods: []rpc.Method{
			{Name: "Query", Unary: func(context.Context, []byte) (*rpc.Frame, error) {
				asked.Add(1)
				return rpc.FrameOf(answer), nil
			}},
			{Name: "QueryNewest", Unary: func(context.Context, []byte) (*rpc.Frame, error) { return rpc.FrameOf(nil), nil }},
		}})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	server.SetServing(true)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	return &fakeRole{address: listener.Addr().String()}, asked
}

// A1 and C2: answers that nobody takes are bounded for the process, leave room for
// others, and end with their connections.
func TestAnswersThatNobodyTakesAreBounded(t *testing.T) {
	const page = 4 << 20
	role, asked := pageRole(t, make([]byte, page))
	f := startGateway(t, role, map[string]string{
		"XMTP_MAX_RESPONSE_BYTES": fmt.Sprint(page), "XMTP_GATEWAY_ANSWER_BUDGET_BYTES": fmt.Sprint(8 * page),
		"XMTP_GATEWAY_BODY_TIMEOUT": "3s", "XMTP_GATEWAY_HOLD": "1s",
	})
	before := heap()
	var attackers []*hostile
	for range 3 {
		attacker := attackFrom(t, f, "127.0.0.2")
		attackers = append(attackers, attacker)
		require.NoError(t, attacker.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
		for range 50 {
			attacker.ask()
		}
	}
	answers := attribute.String("budget", "answers")
	require.Eventually(t, func() bool {
		return asked.Load() == 150 && f.meter.Gauge("xmtp_budget_used_bytes", answers) >= 5*page
	}, soon, time.Millisecond)
	require.LessOrEqual(t, f.meter.Gauge("xmtp_budget_used_bytes", answers), f.meter.Gauge("xmtp_budget_total_bytes", answers))
	require.Less(t, heap(), before+8*page+150*(512<<10)) // the budget, and the windows of what waits
	for range 20 {
		_, err := backendv1.NewQueryServiceClient(f.conn).QueryNewest(t.Context(), &backendv1.QueryNewestRequest{})
		require.NoError(t, err)
	}
	for _, attacker := range attackers {
		attacker.ended()
	}
	require.Eventually(t, func() bool { return f.meter.Gauge("xmtp_budget_used_bytes", answers) == 0 }, soon, time.Millisecond)
	_, err := backendv1.NewQueryServiceClient(f.conn).Query(t.Context(), &backendv1.QueryRequest{}, grpc.MaxCallRecvMsgSize(2*page))
	require.Equal(t, codes.Internal, status.Code(err), "a page of zeros came, which is no message: %v", err)
}

// Clients that take their answers have as many of them as they like.
func TestManyLongAnswersThatAreTakenAllCome(t *testing.T) {
	const page = 2 << 20
	role, _ := pageRole(t, make([]byte, page))
	f := startGateway(t, role, map[string]string{
		"XMTP_MAX_RESPONSE_BYTES": fmt.Sprint(page), "XMTP_GATEWAY_ANSWER_BUDGET_BYTES": fmt.Sprint(4 * page), "XMTP_GATEWAY_HOLD": "1m",
	})
	var running sync.WaitGroup
	for range 4 {
		conn, err := rpc.Dial(f.address, rpc.DialDeps{MaxResponseBytes: page})
		require.NoError(t, err)
		defer conn.Close()
		for range 6 {
			running.Go(func() {
				var frame rpc.Frame
				err := conn.Invoke(t.Context(), backendv1.QueryService_Query_FullMethodName, &rpc.Frame{}, &frame, grpc.WaitForReady(true))
				if err != nil || frame.Data.Len() != page {
					t.Errorf("a page of %d bytes: %v", frame.Data.Len(), err)
				}
				frame.Free()
			})
		}
	}
	running.Wait()
	require.Eventually(t, func() bool { return f.meter.Gauge("xmtp_budget_used_bytes") == 0 }, soon, time.Millisecond)
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// C7: who only begins calls to reset them is thrown out, and soon.
func TestRapidResetEndsTheConnection(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	attacker := attackFrom(t, f, "127.0.0.2")
	require.Equal(t, "0", attacker.status(attacker.ask()))
	go func() {
		for range 100_000 {
			id := attacker.next
			attacker.next += 2
			if attacker.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: attacker.block("application/grpc"), EndHeaders: true}) != nil {
				return
			}
			if attacker.framer.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
				return
			}
		}
	}()
	attacker.ended()
	cancelled := f.meter.Count("grpc_server_handled", attribute.String("grpc_code", "Canceled"))
	require.Less(t, cancelled, int64(10_000))
}

// C16: headers that are too long are refused with their call, and the others of the
// connection go on. C11: and it is counted.
func TestLongHeadersAreRefusedAlone(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	for _, first := range []bool{true, false} {
		neighbour := attackFrom(t, f, "127.0.0.2")
		open := uint32(0)
		if !first {
			open = neighbour.open()
		}
		for _, length := range []int{17_000, 40_000} {
			require.Equal(t, "8", neighbour.status(neighbour.ask(hpack.HeaderField{Name: "x-long", Value: long(length)})))
		}
		require.Equal(t, "0", neighbour.status(neighbour.ask(hpack.HeaderField{Name: "x-long", Value: long(15_000)})))
		if !first {
			require.NoError(t, neighbour.framer.WriteData(open, true, make([]byte, 5)))
			require.Equal(t, "0", neighbour.status(open))
		}
	}
	require.EqualValues(t, 4, f.meter.Count("grpc_server_handled", attribute.String("grpc_code", "ResourceExhausted"), attribute.String("grpc_method", "Query")))
}

// long is a value that takes more than its length when it is compressed.
func long(length int) string { return strings.Repeat("~", length) }

// C11: what is refused is counted under the code that the client reads.
func TestRefusalsAreCountedUnderTheirCode(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_BODY_TIMEOUT": "200ms", "XMTP_MAX_REQUEST_BYTES": "1500000"})
	client := attackFrom(t, f, "127.0.0.1")
	for code, c := range map[string]struct {
		status string
		data   []byte
		ended  bool
	}{
		"OutOfRange":       {"11", []byte{0, 0, 0x17, 0, 0, 1}, false},
		"DeadlineExceeded": {"4", []byte{0, 0, 0, 1, 0, 1}, false},
		"InvalidArgument":  {"3", []byte{0, 0, 0, 1, 0, 1}, true},
	} {
		id := client.open()
		require.NoError(t, client.framer.WriteData(id, c.ended, c.data))
		require.Equal(t, c.status, client.status(id), code)
		require.Eventually(t, func() bool {
			return f.meter.Count("grpc_server_handled", attribute.String("grpc_code", code)) == 1
		}, soon, time.Millisecond, code)
	}
	require.Zero(t, f.meter.Count("grpc_server_handled", attribute.String("grpc_code", "Canceled")))
}

// C10: calls whose message never begins are ended, those of the probes' service, too.
func TestCallsThatNeverBeginEnd(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_BODY_TIMEOUT": "300ms"})
	client := attackFrom(t, f, "127.0.0.2")
	var ids []uint32
	for _, path := range []string{
		"/xmtp.backend.v1.QueryService/Query", "/xmtp.backend.v1.SubscriptionService/SubscribeStatic",
		"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/xmtp.backend.v1.ConfigurationService/GetConfiguration",
	} {
		id := client.next
		client.next += 2
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		for _, field := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
			{Name: ":authority", Value: "a"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
		} {
			require.NoError(t, encoder.WriteField(field))
		}
		require.NoError(t, client.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}))
		ids = append(ids, id)
	}
	got := map[uint32]string{}
	for len(got) < len(ids) {
		frame, err := client.framer.ReadFrame()
		require.NoError(t, err)
		headers, ok := frame.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		for _, field := range headers.Fields {
			if field.Name == "grpc-status" {
				got[headers.StreamID] = field.Value
			}
		}
	}
	for _, id := range ids {
		require.Equal(t, "4", got[id], "stream %d", id)
	}
}

// A gateway that is full refuses in plain words, and serves probes and its others.
func TestAFullGatewayRefusesInPlainWords(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_MAX_CALLS": "40"})
	attacker := attackFrom(t, f, "127.0.0.2")
	var refused []uint32
	for range 50 {
		attacker.open() // and says no more
	}
	for len(refused) < 46 {
		frame, err := attacker.framer.ReadFrame()
		require.NoError(t, err)
		if headers, ok := frame.(*http2.MetaHeadersFrame); ok {
			refused = append(refused, headers.StreamID)
			require.Contains(t, fmt.Sprint(headers.Fields), "this connection has 4 calls in progress; let some of them end first")
		}
	}
	_, err := nativeCaller(f.conn).query(t.Context(), &backendv1.QueryRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 46, f.meter.Count("grpc_server_handled", attribute.String("grpc_code", "ResourceExhausted")))
}
