package gateway_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"google.golang.org/grpc/codes"
)

func TestHealthAnswersPagesToo(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	require.Eventually(t, func() bool {
		answer := post(t, f, "application/json", "/grpc.health.v1.Health/Check", []byte("{}"))
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return string(body) == `{"status":"SERVING"}`
	}, soon, 20_000_000)
	answer := post(t, f, "application/json", "/grpc.health.v1.Health/List", []byte("{}"))
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "xmtp.backend.v1.PublishService")
	require.Equal(t, http.StatusNotFound, post(t, f, "application/json", "/grpc.health.v1.Health/Check", []byte(`{"service":"nobody"}`)).StatusCode)
}

func TestTheConsoleIsServedWhenConfigured(t *testing.T) {
	for value, code := range map[string]int{"true": http.StatusOK, "false": http.StatusNotFound} {
		role := behavingRole()
		role.start(t, "")
		f := startGateway(t, role, map[string]string{"XMTP_CONSOLE": value})
		for path, want := range map[string]int{"/": code, "/other": http.StatusNotFound} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.address+path, nil)
			require.NoError(t, err)
			require.Equal(t, want, do(t, request).StatusCode, "%s with %s", path, value)
		}
	}
}

func TestReflectionTellsTheServicesWhenConfigured(t *testing.T) {
	for _, on := range []bool{true, false} {
		role := behavingRole()
		role.start(t, "")
		f := startGateway(t, role, map[string]string{"XMTP_REFLECTION": map[bool]string{true: "true", false: "false"}[on]})
		stream, err := reflectionv1.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
		require.NoError(t, err)
		ask := &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}
		_ = stream.Send(ask) // the status of a stream that is refused comes with the first receive
		got, err := stream.Recv()
		if !on {
			requireStatus(t, codes.Unimplemented, "no such method", err)
			continue
		}
		require.NoError(t, err)
		names := map[string]bool{}
		for _, service := range got.GetListServicesResponse().GetService() {
			names[service.GetName()] = true
		}
		require.True(t, names["xmtp.backend.v1.PublishService"])
		require.True(t, names["grpc.health.v1.Health"])

		ask.MessageRequest = &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "xmtp.backend.v1.QueryService"}
		require.NoError(t, stream.Send(ask))
		got, err = stream.Recv()
		require.NoError(t, err)
		require.NotEmpty(t, got.GetFileDescriptorResponse().GetFileDescriptorProto())
		require.NoError(t, stream.CloseSend())
		_, err = stream.Recv()
		require.ErrorIs(t, err, io.EOF)
	}
}
