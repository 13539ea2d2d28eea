package gateway_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

const (
	mib       = 1 << 20
	webBudget = 16 * mib // of bodies in these tests, whose messages have 4 MiB
)

// waitingGateway has no role: it holds the messages of calls until patience ends.
func waitingGateway(t *testing.T, patience time.Duration) *front {
	t.Helper()
	return startGateway(t, &fakeRole{address: freeAddress(t)}, map[string]string{
		"XMTP_MAX_REQUEST_BYTES": fmt.Sprint(4 * mib), "XMTP_MAX_ENVELOPE_BYTES": fmt.Sprint(mib),
		"XMTP_GATEWAY_BODY_BUDGET_BYTES": fmt.Sprint(webBudget), "XMTP_GATEWAY_HOLD": patience.String(),
	})
}

func (f *front) bodies() int64 {
	return f.meter.Gauge("xmtp_budget_used_bytes", attribute.String("budget", "bodies"))
}

func gzipped(t *testing.T, message []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, err := writer.Write(message)
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	return packed.Bytes()
}

func framed(flag byte, message []byte) []byte {
	length := len(message)
	return append([]byte{flag, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}, message...)
}

// ask is one call over a connection of its own. It returns the codes of gRPC-Web and
// of Connect, of which an answer has one.
func ask(t *testing.T, f *front, method string, header map[string]string, body io.Reader) (code, text string) {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+f.address+method, body)
	if !assert.NoError(t, err) {
		return "", ""
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	via := &http.Transport{DisableCompression: true}
	defer via.CloseIdleConnections()
	response, err := via.RoundTrip(request)
	if err != nil {
		return "", err.Error()
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	assert.NoError(t, err)
	if code = response.Header.Get("Grpc-Status"); code != "" {
		return code, response.Header.Get("Grpc-Message")
	}
	var failure struct{ Code, Message string }
	_ = json.Unmarshal(answer, &failure)
	return failure.Code, string(answer)
}

// C3: what web calls send is within its budget from its first byte on, as it is
// inflated, and while it is held.
func TestWebBodiesAreWithinTheirBudget(t *testing.T) {
	const calls, method = 40, backendv1.PublishService_Publish_FullMethodName
	long := make([]byte, 4*mib-100)
	grpcWeb := map[string]string{"Content-Type": "application/grpc-web+proto", "Grpc-Encoding": "gzip"}
	for name, c := range map[string]struct {
		header map[string]string
		body   []byte
	}{
		"inflated gRPC-Web": {grpcWeb, framed(1, gzipped(t, long))},
		"inflated Connect":  {map[string]string{"Content-Type": "application/proto", "Content-Encoding": "gzip"}, gzipped(t, long)},
		"plain gRPC-Web":    {grpcWeb, framed(0, long)},
		"plain Connect":     {map[string]string{"Content-Type": "application/proto"}, long},
		"JSON": {map[string]string{"Content-Type": "application/json", "Content-Encoding": "gzip"},
			gzipped(t, []byte(`{"envelopes":[`+strings.Repeat(`{},`, 20_000)+`{}]}`))},
	} {
		t.Run(name, func(t *testing.T) {
			f := waitingGateway(t, 300*time.Millisecond)
			before := heap()
			var running sync.WaitGroup
			for range calls {
				running.Go(func() {
					code, text := ask(t, f, method, c.header, bytes.NewReader(c.body))
					// An answer that comes while the client still writes is not always read.
					assert.Contains(t, []string{"14", "unavailable", ""}, code, text)
				})
			}
			ended := make(chan struct{})
			go func() { defer close(ended); running.Wait() }()
			most, fullest := uint64(0), int64(0)
			for open := true; open; {
				select {
				case <-ended:
					open = false
				case <-time.After(20 * time.Millisecond):
					fullest = max(fullest, f.bodies())
					most = max(most, heap())
				}
			}
			require.Positive(t, fullest)
			require.LessOrEqual(t, fullest, int64(webBudget))
			if name != "JSON" { // what is garbage of its decoding, and what is not, no reading tells; see package web
				require.Less(t, most, before+webBudget+calls*(512<<10), "the budget, and half a MiB for each connection")
			}
			require.Eventually(t, func() bool { return f.bodies() == 0 }, soon, time.Millisecond)
		})
	}
}

// C3: bodies that never end take no more than their budget, and leave room for small ones.
func TestUnfinishedWebBodiesAreWithinTheirBudget(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{
		"XMTP_MAX_REQUEST_BYTES": fmt.Sprint(4 * mib), "XMTP_MAX_ENVELOPE_BYTES": fmt.Sprint(mib),
		"XMTP_GATEWAY_BODY_BUDGET_BYTES": fmt.Sprint(webBudget), "XMTP_GATEWAY_HOLD": "500ms",
	})
	unfinished := make([]byte, 4*mib-1)
	before := heap()
	for range 40 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.address)
		require.NoError(t, err)
		defer conn.Close()
		go func() {
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/proto\r\nContent-Length: %d\r\n\r\n",
				backendv1.PublishService_Publish_FullMethodName, 4*mib)
			_, _ = conn.Write(unfinished)
		}()
	}
	require.Eventually(t, func() bool { return f.bodies() > webBudget/2 }, soon, time.Millisecond)
	for range 50 {
		require.LessOrEqual(t, f.bodies(), int64(webBudget))
		code, text := ask(t, f, backendv1.QueryService_Query_FullMethodName, map[string]string{"Content-Type": "application/json"}, strings.NewReader(`{}`))
		require.Empty(t, code, text)
	}
	require.Less(t, heap(), before+webBudget+40*(512<<10))
	require.Eventually(t, func() bool { // those for which there was no room
		return f.meter.Count("grpc_server_handled", attribute.String("grpc_code", "Unavailable"), attribute.String("grpc_method", "Publish")) > 20
	}, soon, time.Millisecond)
}

// C3: a message is counted whatever its length, and once.
func TestEveryWebMessageIsCounted(t *testing.T) {
	for _, length := range []int{100, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			f := waitingGateway(t, time.Second)
			var running sync.WaitGroup
			for range 5 {
				running.Go(func() {
					code, text := ask(t, f, backendv1.QueryService_Query_FullMethodName, map[string]string{"Content-Type": "application/grpc-web"}, bytes.NewReader(framed(0, make([]byte, length))))
					assert.Equal(t, "14", code, text)
				})
			}
			require.Eventually(t, func() bool {
				used := f.bodies()
				return used >= int64(5*min(length, length-64<<10+1)) && used >= int64(5*min(length, 64<<10)) && used <= int64(5*(length+128<<10))
			}, soon, time.Millisecond)
			running.Wait()
			require.Eventually(t, func() bool { return f.bodies() == 0 }, soon, time.Millisecond)
		})
	}
}

// C3: JSON that would cost more than one client may have is refused, and up to that it is served.
func TestTheCostOfJSONIsWithinTheShare(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{
		"XMTP_MAX_REQUEST_BYTES": fmt.Sprint(4 * mib), "XMTP_MAX_ENVELOPE_BYTES": fmt.Sprint(mib),
		"XMTP_GATEWAY_BODY_BUDGET_BYTES": fmt.Sprint(webBudget), "XMTP_GATEWAY_HOLD": "100ms",
	})
	const share = 2*4*mib + 1<<20
	query := func(objects int) string { return `{"queries":[` + strings.Repeat(`{},`, objects-1) + `{}]}` }
	cost := func(text string) int { return 2*len(text) + 64*(strings.Count(text, "{")+strings.Count(text, ",")) }
	most := 1
	for step := 1 << 20; step > 0; step /= 2 {
		if cost(query(most+step)) <= share {
			most += step
		}
	}
	header := map[string]string{"Content-Type": "application/json", "Content-Encoding": "gzip"}
	code, text := ask(t, f, backendv1.QueryService_Query_FullMethodName, header, bytes.NewReader(gzipped(t, []byte(query(most+1)))))
	require.Equal(t, "resource_exhausted", code, text)
	// Beside its decoded form there is the text.
	code, text = ask(t, f, backendv1.QueryService_Query_FullMethodName, header, bytes.NewReader(gzipped(t, []byte(query(most*9/10)))))
	require.Empty(t, code, text)
}

// C2: what web clients are owed is within its budget, is held once, and ends when
// they take nothing.
func TestWebAnswersThatNobodyTakesAreBounded(t *testing.T) {
	const page, calls = 4 * mib, 60
	for name, c := range map[string]struct {
		open func(t *testing.T, f *front)
	}{
		"HTTP/1.1": {func(t *testing.T, f *front) {
			askAndTakeNothing(t, f, "application/grpc-web+proto", string(make([]byte, 5)), calls)
		}},
		"text":    {func(t *testing.T, f *front) { askAndTakeNothing(t, f, "application/grpc-web-text", "AAAAAAA=", calls) }},
		"Connect": {func(t *testing.T, f *front) { askAndTakeNothing(t, f, "application/proto", "", calls) }},
		"JSON":    {func(t *testing.T, f *front) { askAndTakeNothing(t, f, "application/json", "{}", calls) }},
		"HTTP/2": {func(t *testing.T, f *front) {
			for range 3 {
				attacker := attackFrom(t, f, "127.0.0.2")
				require.NoError(t, attacker.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
				go func() { _, _ = io.Copy(io.Discard, attacker.conn) }()
				for id := uint32(1); id < 2*calls/3; id += 2 {
					require.NoError(t, attacker.framer.WriteHeaders(http2.HeadersFrameParam{
						StreamID: id, BlockFragment: attacker.block("application/grpc-web+proto"), EndHeaders: true,
					}))
					require.NoError(t, attacker.framer.WriteData(id, true, make([]byte, 5)))
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := proto.Marshal(&backendv1.QueryResponse{Envelopes: []*backendv1.ServerEnvelope{{Envelope: groupMessage(make([]byte, page-200))}}})
			require.NoError(t, err)
			role, _ := pageRole(t, answer)
			f := startGateway(t, role, map[string]string{
				"XMTP_MAX_RESPONSE_BYTES": fmt.Sprint(page), "XMTP_GATEWAY_ANSWER_BUDGET_BYTES": fmt.Sprint(8 * page),
				"XMTP_GATEWAY_BODY_TIMEOUT": "3s", "XMTP_GATEWAY_HOLD": "1s",
			})
			answers := attribute.String("budget", "answers")
			before := heap()
			c.open(t, f)
			most, fullest := uint64(0), int64(0)
			require.Eventually(t, func() bool { // all are refused, or have taken nothing for too long
				fullest = max(fullest, f.meter.Gauge("xmtp_budget_used_bytes", answers))
				most = max(most, heap())
				return fullest > 0 && f.meter.Gauge("xmtp_budget_used_bytes", answers) == 0 &&
					f.meter.Count("grpc_server_handled", attribute.String("grpc_method", "Query")) >= calls
			}, 2*soon, 20*time.Millisecond)
			require.LessOrEqual(t, fullest, int64(8*page))
			require.Less(t, most, before+8*page+calls*(768<<10), "the budget, and the windows and buffers of what waits")
		})
	}
}

// askAndTakeNothing begins calls of Query on connections of their own.
func askAndTakeNothing(t *testing.T, f *front, contentType, body string, calls int) {
	t.Helper()
	for range calls {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.address)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
			backendv1.QueryService_Query_FullMethodName, contentType, len(body), body)
		require.NoError(t, err)
	}
}

// Calls that have begun are bounded, by web as by native gRPC, and those that are
// refused are told so.
func TestWebCallsAreBounded(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_MAX_CALLS": "8", "XMTP_GATEWAY_MAX_CONNECTIONS_PER_ADDRESS": "10000"})
	publish := backendv1.PublishService_Publish_FullMethodName
	begun := attribute.String("grpc_method", "Publish")
	var open []net.Conn
	for range 8 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.address)
		require.NoError(t, err)
		defer conn.Close()
		open = append(open, conn)
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/proto\r\nContent-Length: 10\r\n\r\n", publish)
		require.NoError(t, err)
	}
	refused := func() bool {
		code, text := ask(t, f, publish, map[string]string{"Content-Type": "application/json"}, strings.NewReader(`{}`))
		return code == "unavailable" && strings.Contains(text, "as many calls in progress as it can serve")
	}
	require.Eventually(t, refused, soon, time.Millisecond, "one past the limit")
	require.NotZero(t, f.meter.Count("grpc_server_handled", begun, attribute.String("grpc_code", "Unavailable")))
	code, text := ask(t, f, "/grpc.health.v1.Health/Check", map[string]string{"Content-Type": "application/json"}, strings.NewReader(`{}`))
	require.Empty(t, code, text)
	require.NoError(t, open[0].Close())
	require.Eventually(t, func() bool { return !refused() }, soon, time.Millisecond, "at the limit")
}
