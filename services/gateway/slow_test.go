package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

func TestAClientThatTakesNothingIsLetGo(t *testing.T) {
	role := behavingRole()
	begun, ended := make(chan struct{}, 10), make(chan struct{}, 10)
	role.static = func(_ *backendv1.SubscribeStaticRequest, stream grpc.ServerStream) error {
		defer func() { ended <- struct{}{} }()
		begun <- struct{}{}
		full := &backendv1.SubscribeStaticResponse{Response: &backendv1.SubscribeStaticResponse_Messages_{
			Messages: &backendv1.SubscribeStaticResponse_Messages{Envelopes: []*backendv1.ServerEnvelope{{Envelope: groupMessage(make([]byte, 1<<20))}}},
		}}
		for {
			if err := send(stream, full); err != nil {
				return err
			}
		}
	}
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_BODY_TIMEOUT": "400ms"})

	t.Run("native", func(t *testing.T) {
		_, err := backendv1.NewSubscriptionServiceClient(f.conn).SubscribeStatic(t.Context(), &backendv1.SubscribeStaticRequest{})
		require.NoError(t, err)
		within(t, begun)
		within(t, ended)
	})
	for name, http2 := range map[string]bool{"gRPC-Web over HTTP/1.1": false, "gRPC-Web over h2c": true} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				"http://"+f.address+"/xmtp.backend.v1.SubscriptionService/SubscribeStatic", strings.NewReader("\x00\x00\x00\x00\x00"))
			require.NoError(t, err)
			request.Header.Set("Content-Type", "application/grpc-web+proto")
			response, err := transport(t, http2).RoundTrip(request)
			require.NoError(t, err)
			defer response.Body.Close()
			within(t, begun)
			within(t, ended)
		})
	}
}

func TestAQuietStreamOutlivesTheTimeLimitOfItsRequest(t *testing.T) {
	const limit = 300 * time.Millisecond
	role := behavingRole()
	role.static = func(_ *backendv1.SubscribeStaticRequest, stream grpc.ServerStream) error {
		for range 2 {
			if err := send(stream, &backendv1.SubscribeStaticResponse{}); err != nil {
				return err
			}
			select {
			case <-stream.Context().Done():
				return stream.Context().Err()
			case <-time.After(3 * limit):
			}
		}
		return nil
	}
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_BODY_TIMEOUT": limit.String()})
	for name, c := range ways(t, f) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			frames := 0
			require.NoError(t, c.static(t.Context(), &backendv1.SubscribeStaticRequest{}, func(*backendv1.SubscribeStaticResponse) { frames++ }))
			require.Equal(t, 2, frames)
		})
	}
}

// A body that stops half way ends its call, and nothing else.
func TestARequestThatStopsIsLetGo(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_BODY_TIMEOUT": "300ms"})
	conn := connectCaller("http://"+f.address, transport(t, false), false, connect.WithGRPCWeb())
	reader, writer := io.Pipe()
	defer writer.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+f.address+"/xmtp.backend.v1.QueryService/Query", reader)
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/grpc-web+proto")
	go func() { _, _ = writer.Write([]byte{0, 0, 0, 1, 0, 1, 2}) }()
	response, err := transport(t, false).RoundTrip(request)
	if err == nil {
		response.Body.Close()
		require.NotEqual(t, "0", response.Header.Get("Grpc-Status"))
	}
	_, err = conn.query(t.Context(), &backendv1.QueryRequest{})
	require.NoError(t, err)
}
