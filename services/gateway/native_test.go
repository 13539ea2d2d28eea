package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/gateway"
)

// Proves API-135, API-162.
func TestConfigurationIsPublished(t *testing.T) {
	role := &fakeRole{}
	role.start(t, "")
	f := startGateway(t, role, map[string]string{
		"XMTP_CHAINS": "eip155:1=https://user:secret@chain.example/key,eip155:8453=https://b.example", "XMTP_MIN_LIBXMTP_VERSION": "1.2.3-rc1",
	})
	got, err := backendv1.NewConfigurationServiceClient(f.conn).GetConfiguration(t.Context(), &backendv1.GetConfigurationRequest{})
	require.NoError(t, err)
	require.Equal(t, "org.example.chat", got.GetIdentifier())
	require.Equal(t, "1.2.3", got.GetServerVersion())
	require.Equal(t, "1.2.3-rc1", got.GetMinLibxmtpVersion())
	require.Equal(t, []string{"eip155:1", "eip155:8453"}, got.GetSmartContractWalletChains())
	require.EqualValues(t, 26214400, got.GetLimits().GetMaxRequestBytes())
	require.EqualValues(t, 250, got.GetMls().GetMaxGroupMembers())
	require.True(t, got.GetMls().GetCommitLogEnabled())
	require.NotContains(t, got.String(), "secret")
}

// What the gateway publishes is what the reader verifies: it refuses the chains
// that the reader refuses.
func TestMistakesInChains(t *testing.T) {
	for chains, want := range map[string]string{
		"eip155:1=https://a,eip155:01=https://secret": "entry 2: the chain is not eip155: and a decimal number",
		"cosmos:hub=https://secret":                   "entry 1: the chain is not eip155: and a decimal number",
		"https://secret":                              "entry 1: the chain is not eip155: and a decimal number",
		"eip155:1=https://secret,eip155:1=https://b":  "entry 2 repeats chain eip155:1, expected each chain once",
	} {
		var read gateway.Chains
		err := read.UnmarshalText([]byte(chains))
		require.ErrorContains(t, err, "XMTP_CHAINS: "+want, chains)
		require.NotContains(t, err.Error(), "secret")
	}
}

// Proves API-162.
func TestHealthIsServingOnceEveryRoleWasReady(t *testing.T) {
	role := &fakeRole{}
	role.start(t, "")
	address := role.address
	role.stop()
	f := startGateway(t, &fakeRole{address: address}, nil)
	health := healthv1.NewHealthClient(f.conn)
	require.Eventually(t, func() bool {
		got, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{})
		return err == nil && got.GetStatus() == healthv1.HealthCheckResponse_NOT_SERVING
	}, soon, 5*time.Millisecond)

	role.start(t, address)
	for _, service := range []string{"", "xmtp.backend.v1.PublishService", "xmtp.backend.v1.QueryService", "xmtp.backend.v1.SubscriptionService",
		"xmtp.backend.v1.IdentityService", "xmtp.backend.v1.ConfigurationService"} {
		watch, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		for {
			got, err := watch.Recv()
			require.NoError(t, err)
			if got.GetStatus() == healthv1.HealthCheckResponse_SERVING {
				break
			}
		}
	}
	all, err := health.List(t.Context(), &healthv1.HealthListRequest{})
	require.NoError(t, err)
	for name, state := range all.GetStatuses() {
		require.Equal(t, healthv1.HealthCheckResponse_SERVING, state.GetStatus(), name)
	}

	role.stop() // a role that is away does not make the gateway unhealthy
	got, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, got.GetStatus())
}

// Proves API-152.
func TestUnknownAndDeprecatedMethodsSayWhatToUse(t *testing.T) {
	role := &fakeRole{}
	role.start(t, "")
	f := startGateway(t, role, nil)
	for method, text := range map[string]string{
		"/xmtp.mls.api.v1.MlsApi/SendGroupMessages":                "xmtp.backend.v1.PublishService/Publish",
		"/xmtp.mls.api.v1.MlsApi/SubscribeGroupMessages":           "xmtp.backend.v1.SubscriptionService",
		"/xmtp.identity.api.v1.IdentityApi/GetInboxIds":            "xmtp.backend.v1.IdentityService",
		"/xmtp.xmtpv4.message_api.ReplicationApi/PublishEnvelopes": "xmtp.backend.v1",
		"/xmtp.backend.v1.PublishService/Unpublish":                "no such method",
		"/nobody.Knows/This":                                       "no such method",
	} {
		err := f.conn.Invoke(t.Context(), method, &backendv1.PublishRequest{}, &backendv1.PublishResponse{})
		require.Equal(t, codes.Unimplemented, status.Code(err), method)
		require.ErrorContains(t, err, text, method)
	}
}

// Proves API-150.
func TestStatusAndDetailsArriveUnchanged(t *testing.T) {
	role := &fakeRole{}
	role.publish = func(context.Context, *backendv1.PublishRequest) (*backendv1.PublishResponse, error) {
		return nil, fault.Invalidf(fault.InvalidSignature, "the signature “%s” is wrong", "é%").At(3)
	}
	role.query = func(context.Context, *backendv1.QueryRequest) (*backendv1.QueryResponse, error) {
		return nil, fault.Errorf(fault.Unavailable, "the database is away")
	}
	role.start(t, "")
	f := startGateway(t, role, nil)

	_, err := backendv1.NewPublishServiceClient(f.conn).Publish(t.Context(), &backendv1.PublishRequest{})
	got := status.Convert(err)
	require.Equal(t, codes.InvalidArgument, got.Code(), got.Message())
	require.Equal(t, "the signature “é%” is wrong", got.Message())
	require.Len(t, got.Details(), 1)
	detail := got.Details()[0].(*backendv1.PublishError)
	require.EqualValues(t, 3, detail.GetIndex())
	require.Equal(t, backendv1.PublishError_REASON_INVALID_SIGNATURE, detail.GetReason())

	begun := time.Now()
	var trailer metadata.MD
	_, err = backendv1.NewQueryServiceClient(f.conn).Query(t.Context(), &backendv1.QueryRequest{}, grpc.Trailer(&trailer))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, "the database is away", status.Convert(err).Message())
	require.Less(t, time.Since(begun), 5*time.Second, "a dependency that is away must not be held")
	require.Empty(t, trailer.Get("grpc-retry-pushback-ms"))
}

// Proves API-161.
func TestHeadersReachTheRole(t *testing.T) {
	role := &fakeRole{}
	role.start(t, "")
	f := startGateway(t, role, nil)
	sent := metadata.Pairs("x-app-version", "app/1", "x-libxmtp-version", "2.0", "authorization", "Bearer x",
		"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-other", "kept back", "x-request-id", "mine")
	ctx := metadata.NewOutgoingContext(t.Context(), sent)
	var header metadata.MD
	_, err := backendv1.NewPublishServiceClient(f.conn).Publish(ctx, &backendv1.PublishRequest{}, grpc.Header(&header))
	require.NoError(t, err)
	got := role.lastHeaders()
	for _, name := range []string{"x-app-version", "x-libxmtp-version", "authorization", "traceparent", "x-request-id"} {
		require.Equal(t, sent.Get(name), got.Get(name), name)
	}
	require.Empty(t, got.Get("x-other"))
	require.Equal(t, []string{"mine"}, header.Get("x-request-id"))

	_, err = backendv1.NewPublishServiceClient(f.conn).Publish(t.Context(), &backendv1.PublishRequest{}, grpc.Header(&header))
	require.NoError(t, err)
	require.Len(t, header.Get("x-request-id")[0], 32)
	require.Equal(t, header.Get("x-request-id"), role.lastHeaders().Get("x-request-id"))
}

// gRPC carries printable ASCII only; net/http lets more in, and so does grpc-go.
func TestAHeaderThatGRPCCannotCarryIsLeftOut(t *testing.T) {
	role := &fakeRole{}
	role.start(t, "")
	f := startGateway(t, role, nil)
	for contentType, http2 := range map[string]bool{"application/grpc": true, "application/grpc-web+proto": false} {
		for i, value := range []string{"caf\xe9", "café", "a\tb", "\x80"} {
			id := fmt.Sprintf("call-%d", i)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				"http://"+f.address+backendv1.QueryService_Query_FullMethodName, strings.NewReader("\x00\x00\x00\x00\x00"))
			require.NoError(t, err)
			request.Header = http.Header{
				"Content-Type": {contentType}, "X-Request-Id": {id}, "X-App-Version": {value, "an app ~ 1"}, "Authorization": {value},
			}
			response, err := transport(t, http2).RoundTrip(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			got := role.lastHeaders()
			require.Equal(t, []string{id}, got.Get("x-request-id"), "%s with %q reaches the role", contentType, value)
			require.Equal(t, []string{"an app ~ 1"}, got.Get("x-app-version"), "%s with %q", contentType, value)
			require.Empty(t, got.Get("authorization"), "%s with %q", contentType, value)
		}
	}
}
