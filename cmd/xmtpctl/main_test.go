package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// serveHealth answers like a gateway on which one service is as given.
func serveHealth(t *testing.T, state healthv1.HealthCheckResponse_ServingStatus, options ...grpc.ServerOption) (address string) {
	t.Helper()
	listener, err := freeport.Listen()
	require.NoError(t, err)
	server := grpc.NewServer(options...)
	states := health.NewServer()
	states.SetServingStatus("xmtp.backend.v1.QueryService", state)
	healthv1.RegisterHealthServer(server, states)
	go func() { _ = server.Serve(listener) }() // Stop ends it
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// xmtpctl runs a command line and returns what it prints.
func xmtpctl(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	root := newRoot(&out)
	root.SetArgs(arguments)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestHealthFailsWhenAServiceIsDown(t *testing.T) {
	for name, flags := range map[string][]string{"text": {"health"}, "JSON": {"health", "--json"}} {
		t.Run(name, func(t *testing.T) {
			out, err := xmtpctl(t, append(flags, "--endpoint", serveHealth(t, healthv1.HealthCheckResponse_SERVING))...)
			require.NoError(t, err)
			require.Contains(t, out, "xmtp.backend.v1.QueryService")
			out, err = xmtpctl(t, append(flags, "--endpoint", serveHealth(t, healthv1.HealthCheckResponse_NOT_SERVING))...)
			require.ErrorContains(t, err, "1 services do not serve")
			require.Contains(t, out, "NOT_SERVING")
			if name == "JSON" {
				require.Equal(t, 1, strings.Count(out, "\n"), "one value a line: %s", out)
			}
		})
	}
}
