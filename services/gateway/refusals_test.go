package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// secret is what a client sends, and nobody should read again.
var secret = strings.Repeat("hunter2~", 60_000)

// refusedByTheWeb are requests of Query that its method never sees.
func refusedByTheWeb(t *testing.T) map[string]struct {
	code    string // under which they are counted
	headers map[string]string
	body    []byte
} {
	t.Helper()
	of := func(contentType string, more ...string) map[string]string {
		headers := map[string]string{"Content-Type": contentType}
		for i := 0; i < len(more); i += 2 {
			headers[more[i]] = more[i+1]
		}
		return headers
	}
	const grpcWeb, short = "application/grpc-web+proto", "hunter2~hunter2~"
	quoted := []byte(`{"limit":"` + secret + `"}`)
	return map[string]struct {
		code    string
		headers map[string]string
		body    []byte
	}{
		"JSON of the wrong type":         {"InvalidArgument", of("application/json"), quoted},
		"JSON in gRPC-Web":               {"InvalidArgument", of("application/grpc-web+json"), framed(0, quoted)},
		"JSON with a bad token":          {"InvalidArgument", of("application/json"), []byte(secret)},
		"JSON with a bad name":           {"InvalidArgument", of("application/json"), []byte(`{"` + secret + `":hunter2}`)},
		"JSON with a bad enumeration":    {"InvalidArgument", of("application/json"), []byte(`{"queries":[{"topic":{"topic":"` + secret + `"}}]}`)},
		"JSON that is cut off":           {"InvalidArgument", of("application/json"), []byte(`{"queries":[{"topic":{"topic":"hunter2`)},
		"no base64":                      {"InvalidArgument", of("application/grpc-web-text"), []byte(secret)},
		"a message cut off":              {"InvalidArgument", of(grpcWeb), framed(0, make([]byte, 100))[:50]},
		"two messages":                   {"InvalidArgument", of(grpcWeb), append(framed(0, nil), framed(0, nil)...)},
		"no message":                     {"InvalidArgument", of(grpcWeb), nil},
		"a bad flag":                     {"InvalidArgument", of(grpcWeb), framed(9, nil)},
		"no gzip":                        {"InvalidArgument", of(grpcWeb, "Grpc-Encoding", "gzip"), framed(1, []byte(secret))},
		"no gzip in Connect":             {"InvalidArgument", of("application/proto", "Content-Encoding", "gzip"), []byte(secret)},
		"gzip that is cut off":           {"InvalidArgument", of("application/json", "Content-Encoding", "gzip"), gzipped(t, quoted)[:100]},
		"gzip that is cut off, gRPC-Web": {"InvalidArgument", of(grpcWeb, "Grpc-Encoding", "gzip"), framed(1, gzipped(t, quoted)[:100])},
		"an unknown compression":         {"Unimplemented", of(grpcWeb, "Grpc-Encoding", short), framed(1, []byte(short))},
		"a compression of Connect":       {"Unimplemented", of("application/json", "Content-Encoding", short), []byte(`{}`)},
		"a malformed timeout":            {"InvalidArgument", of(grpcWeb, "Grpc-Timeout", short), framed(0, nil)},
		"a timeout of Connect":           {"InvalidArgument", of("application/json", "Connect-Timeout-Ms", short), []byte(`{}`)},
		"a version of Connect":           {"InvalidArgument", of("application/json", "Connect-Protocol-Version", short), []byte(`{}`)},
		"an unknown content type":        {"InvalidArgument", of("text/" + short), []byte(secret)},
		"an unknown codec":               {"InvalidArgument", of("application/grpc-web+" + short), []byte(secret)},
		"a long message":                 {"OutOfRange", of(grpcWeb), framed(0, make([]byte, 1_500_001))},
		"a long message of Connect":      {"OutOfRange", of("application/proto"), make([]byte, 1_500_001)},
		"a message that inflates":        {"ResourceExhausted", of("application/proto", "Content-Encoding", "gzip"), gzipped(t, make([]byte, 1_500_001))},
	}
}

// C11: what the web path refuses is counted under its method and its code. C17: and
// says nothing of what the client sent, in few words and the same each time.
func TestWhatTheWebRefusesIsCountedAndQuotesNothing(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_MAX_REQUEST_BYTES": "1500000", "XMTP_MAX_ENVELOPE_BYTES": "1000000"})
	for name, c := range refusedByTheWeb(t) {
		t.Run(name, func(t *testing.T) {
			counted := func() int64 {
				return f.meter.Count("grpc_server_handled", attribute.String("grpc_code", c.code), attribute.String("grpc_method", "Query"))
			}
			before := counted()
			first := answerOf(t, f, c.headers, c.body)
			require.Equal(t, before+1, counted())
			require.NotContains(t, first, "hunter2")
			require.LessOrEqual(t, len(first), 2<<10)
			require.Equal(t, first, answerOf(t, f, c.headers, c.body))
		})
	}
	require.Zero(t, f.meter.Count("grpc_server_handled", attribute.String("grpc_code", "OK")))
	require.Zero(t, f.meter.Count("grpc_server_handled", attribute.String("grpc_code", "Internal")))
}

// answerOf is all that a client reads: headers, body and trailers.
func answerOf(t *testing.T, f *front, headers map[string]string, body []byte) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+f.address+backendv1.QueryService_Query_FullMethodName, bytes.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Request-Id", "one")
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response := do(t, request)
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	for _, known := range []string{"Date", "Content-Type"} { // a type is that of the request
		response.Header.Del(known)
	}
	return fmt.Sprint(response.StatusCode, response.Header, string(answer), response.Trailer)
}

// A refusal over HTTP/1.1 does not wait for the rest of what it refuses.
func TestAWebRefusalDoesNotWaitForTheRest(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	query := backendv1.QueryService_Query_FullMethodName
	const tooLong = "\x00\x7f\x00\x00\x00\x01"
	for name, request := range map[string]string{
		"chunked":       "POST " + query + " HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc-web\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n" + tooLong + "\r\n",
		"of one length": "POST " + query + " HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc-web\r\nContent-Length: 100\r\n\r\n" + tooLong,
		"unknown":       "POST /a.Service/Method HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc-web\r\nContent-Length: 100\r\n\r\n\x00",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.address)
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
			_, err = io.WriteString(conn, request)
			require.NoError(t, err)
			answer, err := io.ReadAll(conn) // up to the end of the connection
			require.NoError(t, err)
			require.Contains(t, string(answer), "Grpc-Status")
		})
	}
}
