package proxy_test

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/proxy"
)

// longHeaders finds nginx as wide as the gateway, which itself refuses what is longer.
func (b *behind) longHeaders(t *testing.T) {
	for length, code := range map[int]codes.Code{15_000: codes.OK, 17_000: codes.ResourceExhausted} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-long", strings.Repeat("~", length))
		_, err := backendv1.NewPublishServiceClient(b.native(t)).Publish(ctx, b.message(b.kit.Group()))
		require.Equal(t, code, status.Code(err), "%v", err)
	}
	for _, http2 := range []bool{false, true} {
		request := connect.NewRequest(b.message(b.kit.Group()))
		request.Header().Set("X-Long", strings.Repeat("~", 15_000))
		_, err := b.publisher(b.http(t, http2), connect.WithGRPCWeb()).CallUnary(t.Context(), request)
		require.NoError(t, err)
	}
}

// An error's text and details are in the headers of its answer, encoded: they take
// several times their length.
func TestNginxPassesAnswersWithLongHeaders(t *testing.T) {
	long := strings.Repeat("%20", 3000)
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.Header().Set("Grpc-Status", "3")
		w.Header().Set("Grpc-Message", long)
	})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: answer, Protocols: protocols, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	p := proxy.Start(t, listener.Addr().String())
	for _, contentType := range []string{"application/grpc", "application/grpc-web+proto"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL()+backendv1.PublishService_Publish_FullMethodName, strings.NewReader("\x00\x00\x00\x00\x00"))
		require.NoError(t, err)
		request.Header.Set("Content-Type", contentType)
		response, err := client(t, p, true).Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, "3", response.Header.Get("Grpc-Status"), contentType)
		require.Equal(t, long, response.Header.Get("Grpc-Message"), contentType)
	}
}
