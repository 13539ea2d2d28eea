package proxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/proxy"
)

// rounds is how often a message is awaited before the next is sent.
const rounds = 10

// behind is a backend with nginx in front of it, and what the tests send.
type behind struct {
	*proxy.Proxy
	stack *stack.Stack
	kit   *testkit.Kit
}

func start(t *testing.T) *behind {
	t.Helper()
	s := startStack(t, nil)
	return &behind{Proxy: proxy.Start(t, s.Endpoints.Gateway), stack: s, kit: testkit.New(1)}
}

func startStack(t *testing.T, environment map[string]string) *stack.Stack {
	t.Helper()
	dir, err := os.MkdirTemp("", "xmtp-proxy-") // unlike t.TempDir, PostgreSQL's own user can enter it
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s, err := stack.Start(t.Context(), stack.Options{Dir: dir, Environment: environment, Settings: map[string]string{"fsync": "off"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	return s
}

// Without a proxy the gateway itself serves HTTPS, in the dev stack as well.
//
// Proves API-165.
func TestTheStackServesHTTPS(t *testing.T) {
	dir := t.TempDir()
	certificate, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	direct := &proxy.Proxy{Roots: proxy.SelfSigned(t, certificate, key)}
	s := startStack(t, map[string]string{"XMTP_TLS_CERT_FILE": certificate, "XMTP_TLS_KEY_FILE": key})
	direct.Address = s.Endpoints.Gateway
	b := &behind{Proxy: direct, stack: s, kit: testkit.New(2)}
	_, err := b.publisher(b.http(t, true), connect.WithGRPCWeb()).CallUnary(t.Context(), connect.NewRequest(b.message(b.kit.Group())))
	require.NoError(t, err)
	_, err = backendv1.NewPublishServiceClient(b.native(t)).Publish(t.Context(), b.message(b.kit.Group()))
	require.NoError(t, err)
}

// native is a grpc-go client of the proxy.
func (b *behind) native(t *testing.T) *grpc.ClientConn {
	t.Helper()
	return native(t, b.Proxy)
}

func native(t *testing.T, p *proxy.Proxy) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient(p.Address, grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(p.Roots, "")),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { connection.Close() })
	return connection
}

// http is an HTTPS client of the proxy that speaks one version.
func (b *behind) http(t *testing.T, http2 bool) *http.Client {
	t.Helper()
	return client(t, b.Proxy, http2)
}

func client(t *testing.T, p *proxy.Proxy, http2 bool) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: p.Roots, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (b *behind) publisher(client *http.Client, options ...connect.ClientOption) *connect.Client[backendv1.PublishRequest, backendv1.PublishResponse] {
	return connect.NewClient[backendv1.PublishRequest, backendv1.PublishResponse](client, b.URL()+backendv1.PublishService_Publish_FullMethodName, options...)
}

func (b *behind) message(group testkit.Group) *backendv1.PublishRequest {
	return &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{b.kit.GroupMessage(group, 200)}}
}

func static(t *testing.T, p *proxy.Proxy, client *http.Client, group testkit.Group) *connect.ServerStreamForClient[backendv1.SubscribeStaticResponse] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := connect.NewClient[backendv1.SubscribeStaticRequest, backendv1.SubscribeStaticResponse](client,
		p.URL()+backendv1.SubscriptionService_SubscribeStatic_FullMethodName, connect.WithGRPCWeb()).
		CallServerStream(ctx, connect.NewRequest(&backendv1.SubscribeStaticRequest{
			Topics: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}}}))
	require.NoError(t, err)
	t.Cleanup(func() { stream.Close() })
	require.True(t, stream.Receive(), "%v", stream.Err())
	require.NotNil(t, stream.Msg().GetStarted())
	return stream
}

// subscribe opens a bidirectional stream on one topic.
func subscribe(t *testing.T, connection *grpc.ClientConn, group testkit.Group) backendv1.SubscriptionService_SubscribeClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := backendv1.NewSubscriptionServiceClient(connection).Subscribe(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: &backendv1.SubscribeRequest_Update{
		Id: 1, Adds: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}}}}}))
	for {
		frame, err := stream.Recv()
		require.NoError(t, err)
		if frame.GetApplied() != nil {
			return stream
		}
		require.NotNil(t, frame.GetStarted())
	}
}

// Proves API-165.
func TestBehindNginx(t *testing.T) {
	b := start(t)
	t.Run("native gRPC, message by message", b.nativeUnbuffered)
	t.Run("gRPC-Web over HTTP/1.1, message by message", func(t *testing.T) { b.webUnbuffered(t, false) })
	t.Run("gRPC-Web over HTTP/2, message by message", func(t *testing.T) { b.webUnbuffered(t, true) })
	t.Run("the details of errors", b.details)
	t.Run("both on one connection", b.mixed)
	t.Run("a long message is refused by the gateway", b.long)
	t.Run("headers as long as the gateway's", b.longHeaders)
	t.Run("CORS", b.cors)
	t.Run("time-outs", b.timeouts)
	t.Run("a gateway that drains, then is away, then returns", b.away)
}

func (b *behind) nativeUnbuffered(t *testing.T) {
	connection, group := b.native(t), b.kit.Group()
	stream := subscribe(t, connection, group)
	for range rounds {
		published, err := backendv1.NewPublishServiceClient(connection).Publish(t.Context(), b.message(group))
		require.NoError(t, err)
		frame, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, published.GetEnvelopeMetas()[0].GetCursor().GetSequenceId(), frame.GetMessages().GetEnvelopes()[0].GetMeta().GetCursor().GetSequenceId())
	}
	// The other direction: each ping is answered before the next is sent.
	for nonce := range uint64(rounds) {
		require.NoError(t, stream.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Ping{Ping: &backendv1.Ping{Nonce: nonce}}}))
		frame, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, nonce, frame.GetPong().GetNonce())
	}
}

func (b *behind) webUnbuffered(t *testing.T, http2 bool) {
	group, via := b.kit.Group(), b.http(t, http2)
	stream := static(t, b.Proxy, via, group)
	for range rounds {
		published, err := b.publisher(via, connect.WithGRPCWeb()).CallUnary(t.Context(), connect.NewRequest(b.message(group)))
		require.NoError(t, err)
		require.True(t, stream.Receive(), "%v", stream.Err())
		require.Equal(t, published.Msg.GetEnvelopeMetas()[0].GetCursor().GetSequenceId(), stream.Msg().GetMessages().GetEnvelopes()[0].GetMeta().GetCursor().GetSequenceId())
	}
}

func (b *behind) details(t *testing.T) {
	request := &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{b.kit.GroupMessage(b.kit.Group(), 10), {}}}
	check := func(detail any) {
		publishError, ok := detail.(*backendv1.PublishError)
		require.True(t, ok, "the detail is %T", detail)
		require.Equal(t, backendv1.PublishError_REASON_MALFORMED_PAYLOAD, publishError.GetReason())
		require.EqualValues(t, 1, publishError.GetIndex())
	}
	_, err := backendv1.NewPublishServiceClient(b.native(t)).Publish(t.Context(), request)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.Len(t, status.Convert(err).Details(), 1)
	check(status.Convert(err).Details()[0])

	for _, option := range []connect.ClientOption{connect.WithGRPCWeb(), connect.WithProtoJSON()} {
		_, err = b.publisher(b.http(t, false), option).CallUnary(t.Context(), connect.NewRequest(request))
		var failure *connect.Error
		require.ErrorAs(t, err, &failure)
		require.Equal(t, connect.CodeInvalidArgument, failure.Code())
		require.Len(t, failure.Details(), 1)
		detail, err := failure.Details()[0].Value()
		require.NoError(t, err)
		check(detail)
	}
}

// mixed holds two streams of either protocol open while calls of both are made,
// all on one connection of the client.
func (b *behind) mixed(t *testing.T) {
	group, via := b.kit.Group(), b.http(t, true)
	first := static(t, b.Proxy, via, group)
	for i := range 2 * rounds {
		option := connect.WithGRPCWeb()
		if i%2 == 0 {
			option = connect.WithGRPC()
		}
		_, err := b.publisher(via, option).CallUnary(t.Context(), connect.NewRequest(b.message(group)))
		require.NoError(t, err)
		require.True(t, first.Receive(), "%v", first.Err())
	}
}

func (b *behind) long(t *testing.T) {
	request := &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{{Payload: &backendv1.ClientEnvelope_KeyPackage{
		KeyPackage: &backendv1.KeyPackage{KeyPackageTlsSerialized: make([]byte, 26<<20)}}}}}
	_, err := backendv1.NewPublishServiceClient(b.native(t)).Publish(t.Context(), request)
	require.Equal(t, codes.OutOfRange, status.Code(err), "%v", err)
	_, err = b.publisher(b.http(t, false), connect.WithGRPCWeb()).CallUnary(t.Context(), connect.NewRequest(request))
	require.Equal(t, connect.CodeOutOfRange, connect.CodeOf(err), "%v", err)
}

// ask sends what a page of another origin sends.
func (b *behind) ask(t *testing.T, method, contentType string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, b.URL()+backendv1.PublishService_Publish_FullMethodName,
		strings.NewReader("\x00\x00\x00\x00\x01\xff")) // no protobuf message
	require.NoError(t, err)
	request.Header.Set("Origin", "https://app.example.org")
	if method == http.MethodOptions {
		request.Header.Set("Access-Control-Request-Method", http.MethodPost)
		request.Header.Set("Access-Control-Request-Headers", "authorization,content-type,x-app-version,x-grpc-web")
	} else {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := b.http(t, false).Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	return response
}

func (b *behind) cors(t *testing.T) {
	b.preflight(t)
	answer := b.ask(t, http.MethodPost, "application/grpc-web+proto")
	require.Equal(t, "3", answer.Header.Get("Grpc-Status"), "an error before any message has its status in the headers")
	require.Equal(t, []string{"*"}, answer.Header.Values("Access-Control-Allow-Origin"), "once, not by the gateway and by nginx")
	exposed := strings.ToLower(answer.Header.Get("Access-Control-Expose-Headers"))
	for _, name := range []string{"grpc-status", "grpc-message", "grpc-status-details-bin", "x-request-id"} {
		require.Contains(t, exposed, name)
	}
	require.NotEmpty(t, answer.Header.Get("X-Request-Id"))
}

func (b *behind) preflight(t *testing.T) {
	t.Helper()
	allowed := b.ask(t, http.MethodOptions, "")
	require.Less(t, allowed.StatusCode, 300)
	require.Equal(t, []string{"*"}, allowed.Header.Values("Access-Control-Allow-Origin"))
	require.Contains(t, allowed.Header.Get("Access-Control-Allow-Methods"), http.MethodPost)
	require.Contains(t, strings.ToLower(allowed.Header.Get("Access-Control-Allow-Headers")), "authorization")
}

// away checks that no client reads anything but UNAVAILABLE from the moment that
// the gateway is told to stop, and that it works again when the gateway is back.
func (b *behind) away(t *testing.T) {
	connection, group := b.native(t), b.kit.Group()
	open, openWeb := subscribe(t, connection, group), static(t, b.Proxy, b.http(t, false), group)
	require.NoError(t, b.stack.StopRole(stack.Gateway))
	_, err := open.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.False(t, openWeb.Receive())
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(openWeb.Err()), "%v", openWeb.Err())

	_, err = backendv1.NewPublishServiceClient(connection).Publish(t.Context(), b.message(group))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.Contains(t, err.Error(), "the gateway cannot be reached")
	for _, http2 := range []bool{false, true} {
		for _, option := range []connect.ClientOption{connect.WithGRPCWeb(), connect.WithProtoJSON()} {
			_, err = b.publisher(b.http(t, http2), option).CallUnary(t.Context(), connect.NewRequest(b.message(group)))
			require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err), "%v", err)
		}
	}
	b.preflight(t)
	for _, contentType := range []string{"application/grpc-web+proto", "application/json"} {
		require.Equal(t, "*", b.ask(t, http.MethodPost, contentType).Header.Get("Access-Control-Allow-Origin"), contentType)
	}

	require.NoError(t, b.stack.StartRole(stack.Gateway))
	require.Eventually(t, func() bool {
		_, err := backendv1.NewPublishServiceClient(connection).Publish(t.Context(), b.message(group))
		require.Contains(t, []codes.Code{codes.OK, codes.Unavailable}, status.Code(err), "%v", err)
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
}

// longLived are the directives of nginx that end a call when one side is silent.
var longLived = []string{"client_body_timeout", "grpc_read_timeout", "grpc_send_timeout", "proxy_read_timeout", "proxy_send_timeout"}

// timeouts finds all of them at a day. That they are the ones that matter is
// shown by setting one after the other to four seconds, which ends a silent stream.
func (b *behind) timeouts(t *testing.T) {
	text := proxy.Configuration(t)
	set := map[string]string{}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(strings.TrimSuffix(strings.TrimSpace(line), ";")); len(fields) == 2 && strings.HasSuffix(fields[0], "_timeout") {
			set[fields[0]] = fields[1]
		}
	}
	for _, name := range longLived {
		require.Equal(t, "1d", set[name], name)
	}
	for _, name := range []string{"client_body_timeout", "grpc_read_timeout", "proxy_read_timeout"} {
		group := b.kit.Group()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			short := proxy.Start(t, b.stack.Endpoints.Gateway, edit(text, name))
			ended := make(chan error, 1)
			if name == "proxy_read_timeout" {
				stream := static(t, short, client(t, short, false), group)
				go func() {
					stream.Receive()
					ended <- stream.Err()
				}()
			} else {
				stream := subscribe(t, native(t, short), group)
				go func() {
					_, err := stream.Recv()
					ended <- err
				}()
			}
			select {
			case err := <-ended:
				require.Error(t, err)
			case <-time.After(20 * time.Second):
				require.NoError(t, errors.New("a silent stream outlived "+name))
			}
		})
	}
}

// edit sets a directive to four seconds: enough for a stream to begin.
func edit(text, name string) [2]string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), name+" ") {
			line = strings.TrimSpace(line)
			return [2]string{line, name + " 4s;"}
		}
	}
	return [2]string{name, name}
}
