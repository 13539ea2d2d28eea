package gateway_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
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

// The same over native gRPC, where one connection carries other calls, too: part
// of a message, and a message whose stream does not end.
func TestANativeRequestThatStopsIsLetGo(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	certificate, key, pool := certify(t)
	plain := startGateway(t, role, map[string]string{"XMTP_GATEWAY_BODY_TIMEOUT": "300ms"})
	secured := startGateway(t, role, map[string]string{
		"XMTP_GATEWAY_BODY_TIMEOUT": "300ms", "XMTP_TLS_CERT_FILE": certificate, "XMTP_TLS_KEY_FILE": key,
	})
	for name, open := range map[string]func() (net.Conn, error){
		"cleartext": func() (net.Conn, error) { return (&net.Dialer{}).DialContext(t.Context(), "tcp", plain.address) },
		"TLS": func() (net.Conn, error) {
			dialer := tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}}
			return dialer.DialContext(t.Context(), "tcp", secured.address)
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := open()
			require.NoError(t, err)
			defer conn.Close()
			stopHalfWay(t, conn)
		})
	}
}

func stopHalfWay(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
	_, block := speaks(conn)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	call := func(id uint32, data []byte, ended bool) {
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block("application/grpc"), EndHeaders: true}))
		require.NoError(t, framer.WriteData(id, ended, data))
	}
	statusOf := func(id uint32) string {
		for {
			frame, err := framer.ReadFrame()
			require.NoError(t, err)
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
	call(1, []byte{0, 0, 1, 0, 1, 2}, false)
	require.Equal(t, "4", statusOf(1)) // DEADLINE_EXCEEDED
	call(3, make([]byte, 5), false)
	require.Equal(t, "4", statusOf(3))
	call(5, make([]byte, 5), true)
	require.Equal(t, "0", statusOf(5))
}
