package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
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

// certified is a certificate for chat.example.org alone. Roots are read once in a
// process, so there is one.
var certified = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"chat.example.org"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	encoded, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{encoded}, PrivateKey: key}, err
})

func TestTheCertificateMayBeOfAnotherNameThanTheAddress(t *testing.T) {
	certificate, err := certified()
	require.NoError(t, err)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	require.NoError(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}), 0o600))
	t.Setenv("SSL_CERT_FILE", roots)
	address := serveHealth(t, healthv1.HealthCheckResponse_SERVING, grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	call := func(flags ...string) error {
		_, err := xmtpctl(t, append([]string{"health", "--endpoint", address}, flags...)...)
		return err
	}
	require.NoError(t, call("--tls", "--tls-server-name", "chat.example.org"))
	require.ErrorContains(t, call("--tls"), "certificate")
	require.ErrorContains(t, call("--tls", "--tls-server-name", "other.example.org"), "certificate is valid for chat.example.org")
	require.ErrorContains(t, call("--tls-server-name", "chat.example.org"), "without --tls")
}

func TestVersion(t *testing.T) {
	for line, want := range map[string]string{"version": "xmtpctl dev\n", "--version": "xmtpctl dev\n", "version --json": `{"version":"dev"}` + "\n"} {
		out, err := xmtpctl(t, strings.Fields(line)...)
		require.NoError(t, err)
		require.Equal(t, want, out, line)
	}
}
