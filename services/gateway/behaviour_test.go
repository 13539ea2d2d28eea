package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/gateway"
)

// behavingRole answers so that every way in can be told right from wrong.
func behavingRole() *fakeRole {
	role := &fakeRole{}
	role.publish = func(_ context.Context, request *backendv1.PublishRequest) (*backendv1.PublishResponse, error) {
		if len(request.GetEnvelopes()) == 0 {
			return nil, fault.Invalidf(fault.InvalidSignature, "the signature “%s” is wrong\nand so on", "é%").At(3)
		}
		response := &backendv1.PublishResponse{}
		for i, envelope := range request.GetEnvelopes() {
			data := envelope.GetGroupMessage().GetData()
			response.EnvelopeMetas = append(response.EnvelopeMetas, &backendv1.EnvelopeMeta{
				Cursor: &backendv1.Cursor{SequenceId: uint64(i + 1)}, Topic: &backendv1.Topic{Topic: data[:min(len(data), 100_000)]},
			})
		}
		return response, nil
	}
	role.query = func(_ context.Context, request *backendv1.QueryRequest) (*backendv1.QueryResponse, error) {
		switch request.GetLimit() {
		case 1:
			return nil, fault.Errorf(fault.Unavailable, "the database is away")
		case 2:
			return nil, fault.Errorf(fault.Broken, "")
		case 3: // an answer that is too long
			return &backendv1.QueryResponse{Envelopes: []*backendv1.ServerEnvelope{{Envelope: groupMessage(make([]byte, 2<<20))}}}, nil
		default:
			return &backendv1.QueryResponse{Continuation: &backendv1.Continuation{HasMore: true}}, nil
		}
	}
	role.static = func(request *backendv1.SubscribeStaticRequest, stream grpc.ServerStream) error {
		if len(request.GetTopics()) == 0 {
			return fault.Invalidf(fault.NoReason, "no topic")
		}
		started := &backendv1.SubscribeStaticResponse{Response: &backendv1.SubscribeStaticResponse_Started_{
			Started: &backendv1.SubscribeStaticResponse_Started{KeepaliveIntervalMs: 30000},
		}}
		if err := send(stream, started); err != nil {
			return err
		}
		for range request.GetTopics() {
			if err := send(stream, &backendv1.SubscribeStaticResponse{Response: &backendv1.SubscribeStaticResponse_Keepalive_{}}); err != nil {
				return err
			}
		}
		if len(request.GetTopics()) == 3 {
			return fault.Errorf(fault.Exhausted, "too slow")
		}
		return nil
	}
	role.subscribe = echoPings
	return role
}

// echoPings sends Started and answers each ping with its nonce; nonce 13 ends
// the stream with an error.
func echoPings(stream grpc.ServerStream) error {
	started := &backendv1.SubscribeResponse{Response: &backendv1.SubscribeResponse_Started_{Started: &backendv1.SubscribeResponse_Started{}}}
	if err := send(stream, started); err != nil {
		return err
	}
	for {
		var frame rpc.Frame
		err := stream.RecvMsg(&frame)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		request := &backendv1.SubscribeRequest{}
		if err := proto.Unmarshal(frame.Take(), request); err != nil {
			return fault.Invalidf(fault.NoReason, "not a protobuf message")
		}
		nonce := request.GetPing().GetNonce()
		if nonce == 13 {
			return fault.Invalidf(fault.NoReason, "unlucky")
		}
		pong := &backendv1.SubscribeResponse{Response: &backendv1.SubscribeResponse_Pong{Pong: &backendv1.Pong{Nonce: nonce}}}
		if err := send(stream, pong); err != nil {
			return err
		}
	}
}

func groupMessage(data []byte) *backendv1.ClientEnvelope {
	return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_GroupMessage{GroupMessage: &backendv1.GroupMessage{Data: data}}}
}

func requireStatus(t *testing.T, code codes.Code, text string, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code.String(), status.Code(err).String(), err.Error())
	require.Contains(t, status.Convert(err).Message(), text)
}

// Proves API-130, API-134, API-150, API-160.
func TestEveryWayInBehavesTheSame(t *testing.T) {
	for _, http2 := range []string{gateway.HTTP2Auto, gateway.HTTP2HTTP} {
		role := behavingRole()
		role.start(t, "")
		f := startGateway(t, role, map[string]string{
			"XMTP_MAX_REQUEST_BYTES": "1500000", "XMTP_MAX_RESPONSE_BYTES": "1500000", "XMTP_GATEWAY_HTTP2": http2,
		})
		for name, c := range ways(t, f) {
			t.Run(http2+"/"+name, func(t *testing.T) { behaves(t, role, name, c) })
		}
	}
}

func behaves(t *testing.T, role *fakeRole, name string, c caller) {
	t.Run("unary", func(t *testing.T) { unaryBehaves(t, role, c) })
	t.Run("errors", func(t *testing.T) { errorsBehave(t, c) })
	t.Run("sizes", func(t *testing.T) { sizesBehave(t, c, name) })
	t.Run("static", func(t *testing.T) { staticBehaves(t, c) })
	if c.subscribe != nil {
		t.Run("bidirectional", func(t *testing.T) { bidiBehaves(t, c) })
	}
}

func unaryBehaves(t *testing.T, role *fakeRole, c caller) {
	data := bytes.Repeat([]byte{0, 1, 0x80, 0xff}, 5000)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-app-version", "app/7", "x-libxmtp-version", "1.2.3", "authorization", "Bearer abc")
	got, err := c.publish(ctx, &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{groupMessage([]byte("a")), groupMessage(data)}})
	require.NoError(t, err)
	require.Len(t, got.GetEnvelopeMetas(), 2)
	require.Equal(t, data, got.GetEnvelopeMetas()[1].GetTopic().GetTopic())
	require.Equal(t, []string{"app/7"}, role.lastHeaders().Get("x-app-version"))
	require.Equal(t, []string{"1.2.3"}, role.lastHeaders().Get("x-libxmtp-version"))
	require.Equal(t, []string{"Bearer abc"}, role.lastHeaders().Get("authorization"))
	require.Len(t, role.lastHeaders().Get("x-request-id"), 1)

	more, err := c.query(t.Context(), &backendv1.QueryRequest{})
	require.NoError(t, err)
	require.True(t, more.GetContinuation().GetHasMore())
}

func errorsBehave(t *testing.T, c caller) {
	_, err := c.publish(t.Context(), &backendv1.PublishRequest{})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.Equal(t, "the signature “é%” is wrong\nand so on", status.Convert(err).Message())
	require.Len(t, status.Convert(err).Details(), 1)
	detail := status.Convert(err).Details()[0].(*backendv1.PublishError)
	require.EqualValues(t, 3, detail.GetIndex())
	require.Equal(t, backendv1.PublishError_REASON_INVALID_SIGNATURE, detail.GetReason())
	require.Equal(t, "the signature “é%” is wrong\nand so on", detail.GetMessage())

	_, err = c.query(t.Context(), &backendv1.QueryRequest{Limit: 1})
	requireStatus(t, codes.Unavailable, "the database is away", err)
	_, err = c.query(t.Context(), &backendv1.QueryRequest{Limit: 2})
	requireStatus(t, codes.Internal, "", err)
	requireStatus(t, codes.Unimplemented, "use xmtp.backend.v1.PublishService/Publish instead", c.unknown(t.Context()))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.query(ctx, &backendv1.QueryRequest{})
	requireStatus(t, codes.Canceled, "", err)
}

func sizesBehave(t *testing.T, c caller, name string) {
	_, err := c.query(t.Context(), &backendv1.QueryRequest{Limit: 3})
	requireStatus(t, codes.OutOfRange, "1500000", err)
	// At the limit, and one past it.
	request := &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{groupMessage(make([]byte, 1_400_000))}}
	if name == "Connect JSON" || name == "Connect JSON over h2c" {
		return // its length is that of the JSON text
	}
	request.Envelopes[0].GetGroupMessage().Data = make([]byte, 1_400_000+1_500_000-proto.Size(request))
	require.Equal(t, 1_500_000, proto.Size(request))
	if name != "gRPC-Web, gzip requests" {
		_, err = c.publish(t.Context(), request)
		require.NoError(t, err)
	}
	request.Envelopes[0].GetGroupMessage().Data = append(request.GetEnvelopes()[0].GetGroupMessage().GetData(), 0)
	_, err = c.publish(t.Context(), request)
	if name == "gRPC-Web, gzip requests" {
		requireStatus(t, codes.ResourceExhausted, "", err)
		return
	}
	requireStatus(t, codes.OutOfRange, "1500001 bytes long, expected at most 1500000", err)
}

func staticBehaves(t *testing.T, c caller) {
	topics := func(n int) *backendv1.SubscribeStaticRequest {
		request := &backendv1.SubscribeStaticRequest{}
		for range n {
			request.Topics = append(request.Topics, &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: []byte{1, 2, 3}}})
		}
		return request
	}
	var got []*backendv1.SubscribeStaticResponse
	each := func(m *backendv1.SubscribeStaticResponse) { got = append(got, proto.CloneOf(m)) }
	require.NoError(t, c.static(t.Context(), topics(2), each))
	require.Len(t, got, 3)
	require.EqualValues(t, 30000, got[0].GetStarted().GetKeepaliveIntervalMs())
	require.NotNil(t, got[2].GetKeepalive())

	got = nil
	requireStatus(t, codes.ResourceExhausted, "too slow", c.static(t.Context(), topics(3), each))
	require.Len(t, got, 4)

	requireStatus(t, codes.InvalidArgument, "no topic", c.static(t.Context(), topics(0), each))
}

func bidiBehaves(t *testing.T, c caller) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := c.subscribe(ctx)
	ping := func(nonce uint64) *backendv1.SubscribeRequest {
		return &backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Ping{Ping: &backendv1.Ping{Nonce: nonce}}}
	}
	require.NoError(t, stream.Send(ping(1)))
	got, err := stream.Receive()
	require.NoError(t, err)
	require.NotNil(t, got.GetStarted())
	for nonce := uint64(1); nonce < 5; nonce++ {
		got, err = stream.Receive()
		require.NoError(t, err)
		require.Equal(t, nonce, got.GetPong().GetNonce())
		require.NoError(t, stream.Send(ping(nonce+1)))
	}
	_, err = stream.Receive()
	require.NoError(t, err)
	require.NoError(t, stream.CloseRequest())
	_, err = stream.Receive()
	require.ErrorIs(t, err, io.EOF)

	unlucky := c.subscribe(ctx)
	require.NoError(t, unlucky.Send(ping(13)))
	_, err = unlucky.Receive()
	require.NoError(t, err)
	_, err = unlucky.Receive()
	requireStatus(t, codes.InvalidArgument, "unlucky", err)
}
