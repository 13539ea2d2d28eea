package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// requestID names a call in the answer and on its way to the role.
const requestID = "x-request-id"

// forwardedHeaders reach the role beside x-request-id (API-161): the client's
// versions, its future credentials, and the trace that the call belongs to.
var forwardedHeaders = []string{"x-app-version", "x-libxmtp-version", "authorization", "traceparent", "tracestate"}

// maxRequestIDBytes bounds an id that a client chose.
const maxRequestIDBytes = 128

// nativeContext is the context of a call on grpc-go's transport with the
// metadata for the role. The answer carries x-request-id.
func nativeContext(ctx context.Context) context.Context {
	out := make(metadata.MD, len(forwardedHeaders)+1)
	id := ""
	if ids := metadata.ValueFromIncomingContext(ctx, requestID); len(ids) > 0 {
		id = ids[0]
	}
	ids := []string{requestIDOr(id)}
	out[requestID] = ids
	for _, name := range forwardedHeaders {
		forwardHeader(out, name, metadata.ValueFromIncomingContext(ctx, name))
	}
	// It fails only after the headers were sent, and nothing was yet.
	_ = grpc.SetHeader(ctx, metadata.MD{requestID: ids})
	return metadata.NewOutgoingContext(ctx, out)
}

// webContext is nativeContext for a call on net/http. It also returns the headers
// of the answer.
func webContext(ctx context.Context, request http.Header) (context.Context, map[string]string) {
	id := requestIDOr(request.Get(requestID))
	out := metadata.MD{requestID: []string{id}}
	for _, name := range forwardedHeaders {
		forwardHeader(out, name, request.Values(name))
	}
	return metadata.NewOutgoingContext(ctx, out), map[string]string{requestID: id}
}

// forwardHeader leaves out what gRPC cannot send: one such value would fail the
// whole call with INTERNAL, and the roles can do without.
func forwardHeader(out metadata.MD, name string, values []string) {
	for _, value := range values {
		if isWithin(value, ' ', '~') {
			out.Append(name, value)
		}
	}
}

// requestIDOr returns the client's id, or a new one when it has none that can be
// passed on.
func requestIDOr(id string) string {
	if id != "" && len(id) <= maxRequestIDBytes && isWithin(id, '!', '~') {
		return id
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

func isWithin(s string, first, last byte) bool {
	for i := range len(s) {
		if s[i] < first || s[i] > last {
			return false
		}
	}
	return true
}
