package gateway_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// caller is one way in. Errors come as statuses, with the details decoded.
type caller struct {
	publish func(ctx context.Context, request *backendv1.PublishRequest) (*backendv1.PublishResponse, error)
	query   func(ctx context.Context, request *backendv1.QueryRequest) (*backendv1.QueryResponse, error)
	unknown func(ctx context.Context) error
	// static returns the messages until the stream ends, with its error.
	static func(ctx context.Context, request *backendv1.SubscribeStaticRequest, each func(*backendv1.SubscribeStaticResponse)) error
	// subscribe is nil where there are no request streams.
	subscribe func(ctx context.Context) bidiStream
}

type bidiStream interface {
	Send(request *backendv1.SubscribeRequest) error
	Receive() (*backendv1.SubscribeResponse, error)
	CloseRequest() error
}

// ways is every way in, by name.
func ways(t *testing.T, f *front) map[string]caller {
	base := "http://" + f.address
	h1 := func() *http.Transport { return transport(t, false) }
	h2 := func() *http.Transport { return transport(t, true) } // each has a connection of its own
	return map[string]caller{
		"native gRPC":             nativeCaller(f.conn),
		"gRPC by connect-go":      connectCaller(base, h2(), true, connect.WithGRPC()),
		"gRPC-Web over HTTP/1.1":  connectCaller(base, h1(), false, connect.WithGRPCWeb()),
		"gRPC-Web over h2c":       connectCaller(base, h2(), true, connect.WithGRPCWeb()),
		"gRPC-Web text":           connectCaller(base, textTransport{h1()}, false, connect.WithGRPCWeb()),
		"Connect JSON":            connectCaller(base, h1(), false, connect.WithProtoJSON()),
		"Connect JSON over h2c":   connectCaller(base, h2(), true, connect.WithProtoJSON()),
		"Connect protobuf":        connectCaller(base, h1(), false),
		"gRPC-Web, gzip requests": connectCaller(base, h1(), false, connect.WithGRPCWeb(), connect.WithSendGzip()),
	}
}

func transport(t testing.TB, http2 bool) *http.Transport {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

func nativeCaller(conn *grpc.ClientConn) caller {
	return caller{
		publish: func(ctx context.Context, request *backendv1.PublishRequest) (*backendv1.PublishResponse, error) {
			return backendv1.NewPublishServiceClient(conn).Publish(ctx, request)
		},
		query: func(ctx context.Context, request *backendv1.QueryRequest) (*backendv1.QueryResponse, error) {
			return backendv1.NewQueryServiceClient(conn).Query(ctx, request)
		},
		unknown: func(ctx context.Context) error {
			return conn.Invoke(ctx, "/xmtp.mls.api.v1.MlsApi/UploadKeyPackage", &backendv1.PublishRequest{}, &backendv1.PublishResponse{})
		},
		static: func(ctx context.Context, request *backendv1.SubscribeStaticRequest, each func(*backendv1.SubscribeStaticResponse)) error {
			stream, err := backendv1.NewSubscriptionServiceClient(conn).SubscribeStatic(ctx, request)
			if err != nil {
				return err
			}
			for {
				got, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				each(got)
			}
		},
		subscribe: func(ctx context.Context) bidiStream {
			stream, err := backendv1.NewSubscriptionServiceClient(conn).Subscribe(ctx)
			if err != nil {
				panic(err) // a stream of a healthy connection always opens
			}
			return nativeBidi{stream}
		},
	}
}

type nativeBidi struct {
	backendv1.SubscriptionService_SubscribeClient
}

func (s nativeBidi) Receive() (*backendv1.SubscribeResponse, error) { return s.Recv() }
func (s nativeBidi) CloseRequest() error                            { return s.CloseSend() }

func connectCaller(base string, via http.RoundTripper, bidi bool, options ...connect.ClientOption) caller {
	client := &http.Client{Transport: via}
	publish := connect.NewClient[backendv1.PublishRequest, backendv1.PublishResponse](client, base+backendv1.PublishService_Publish_FullMethodName, options...)
	query := connect.NewClient[backendv1.QueryRequest, backendv1.QueryResponse](client, base+backendv1.QueryService_Query_FullMethodName, options...)
	unknown := connect.NewClient[backendv1.QueryRequest, backendv1.QueryResponse](client, base+"/xmtp.mls.api.v1.MlsApi/UploadKeyPackage", options...)
	static := connect.NewClient[backendv1.SubscribeStaticRequest, backendv1.SubscribeStaticResponse](client, base+backendv1.SubscriptionService_SubscribeStatic_FullMethodName, options...)
	subscribe := connect.NewClient[backendv1.SubscribeRequest, backendv1.SubscribeResponse](client, base+backendv1.SubscriptionService_Subscribe_FullMethodName, options...)
	c := caller{
		publish: func(ctx context.Context, request *backendv1.PublishRequest) (*backendv1.PublishResponse, error) {
			return connectUnary(ctx, publish, request)
		},
		query: func(ctx context.Context, request *backendv1.QueryRequest) (*backendv1.QueryResponse, error) {
			return connectUnary(ctx, query, request)
		},
		unknown: func(ctx context.Context) error {
			_, err := connectUnary(ctx, unknown, &backendv1.QueryRequest{})
			return err
		},
		static: func(ctx context.Context, request *backendv1.SubscribeStaticRequest, each func(*backendv1.SubscribeStaticResponse)) error {
			stream, err := static.CallServerStream(ctx, withHeaders(ctx, connect.NewRequest(request)))
			if err != nil {
				return statusOf(err)
			}
			defer stream.Close()
			for stream.Receive() {
				each(stream.Msg())
			}
			return statusOf(stream.Err())
		},
	}
	if bidi {
		c.subscribe = func(ctx context.Context) bidiStream { return connectBidi{subscribe.CallBidiStream(ctx)} }
	}
	return c
}

type connectBidi struct {
	*connect.BidiStreamForClient[backendv1.SubscribeRequest, backendv1.SubscribeResponse]
}

func (s connectBidi) Receive() (*backendv1.SubscribeResponse, error) {
	got, err := s.BidiStreamForClient.Receive()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, statusOf(err)
	}
	return got, err
}

func connectUnary[Request, Response any](ctx context.Context, client *connect.Client[Request, Response], request *Request) (*Response, error) {
	response, err := client.CallUnary(ctx, withHeaders(ctx, connect.NewRequest(request)))
	if err != nil {
		return nil, statusOf(err)
	}
	return response.Msg, nil
}

// withHeaders sends the metadata that a native client would.
func withHeaders[T any](ctx context.Context, request *connect.Request[T]) *connect.Request[T] {
	outgoing, _ := metadata.FromOutgoingContext(ctx)
	for name, values := range outgoing {
		request.Header()[http.CanonicalHeaderKey(name)] = values
	}
	return request
}

// statusOf is a connect error as a status.
func statusOf(err error) error {
	var failure *connect.Error
	if !errors.As(err, &failure) {
		return err
	}
	converted := status.New(codes.Code(failure.Code()), failure.Message())
	for _, detail := range failure.Details() {
		value, err := detail.Value()
		if err != nil {
			return err
		}
		converted, err = converted.WithDetails(value.(interface {
			proto.Message
			Reset()
			String() string
			ProtoMessage()
		}))
		if err != nil {
			return err
		}
	}
	return converted.Err()
}

// textTransport turns gRPC-Web into its text form, in two separately padded
// pieces, and back.
type textTransport struct{ next http.RoundTripper }

func (t textTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	half := len(body) / 2
	inner := r.Clone(r.Context())
	inner.Header.Set("Content-Type", strings.Replace(r.Header.Get("Content-Type"), "grpc-web", "grpc-web-text", 1))
	text := base64.StdEncoding.EncodeToString(body[:half]) + base64.StdEncoding.EncodeToString(body[half:])
	inner.Body = io.NopCloser(strings.NewReader(text))
	inner.ContentLength = int64(len(text))
	response, err := t.next.RoundTrip(inner)
	if err != nil {
		return nil, err
	}
	contentType := response.Header.Get("Content-Type")
	if !strings.HasPrefix(contentType, "application/grpc-web-text") {
		return nil, errors.New("the answer is not text but " + contentType)
	}
	response.Header.Set("Content-Type", strings.Replace(contentType, "-text", "", 1))
	response.Body = &groupReader{ReadCloser: response.Body}
	response.ContentLength = -1
	return response, nil
}

// groupReader decodes every four characters on their own.
type groupReader struct {
	io.ReadCloser
	ready []byte
}

func (r *groupReader) Read(p []byte) (int, error) {
	if len(r.ready) == 0 {
		var group [4]byte
		if _, err := io.ReadFull(r.ReadCloser, group[:]); err != nil {
			return 0, err
		}
		decoded, err := base64.StdEncoding.DecodeString(string(group[:]))
		if err != nil {
			return 0, err
		}
		r.ready = decoded
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// send encodes as a role does.
func send(stream grpc.ServerStream, message proto.Message) error {
	encoded, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	return stream.SendMsg(rpc.FrameOf(encoded))
}
