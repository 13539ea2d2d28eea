package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// A proxy may put native gRPC and gRPC-Web on one connection. With auto the others on
// it are refused with a clear status, and nobody else is the worse for it.
func TestAConnectionThatBeganNativeRefusesTheRest(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	for range 2 { // the second connection of the address is met as the first was
		proxy := transport(t, true)
		native := connectCaller("http://"+f.address, proxy, true, connect.WithGRPC())
		open := native.subscribe(t.Context())
		require.NoError(t, open.Send(&backendv1.SubscribeRequest{}))
		_, err := open.Receive()
		require.NoError(t, err)
		for _, other := range []connect.ClientOption{connect.WithGRPCWeb(), connect.WithProtoJSON()} {
			_, err := connectCaller("http://"+f.address, proxy, true, other).query(t.Context(), &backendv1.QueryRequest{})
			require.ErrorContains(t, err, "415")
			_, err = native.query(t.Context(), &backendv1.QueryRequest{})
			require.NoError(t, err)
			_, err = connectCaller("http://"+f.address, transport(t, true), true, other).query(t.Context(), &backendv1.QueryRequest{})
			require.NoError(t, err, "on a connection of its own")
		}
		_, err = open.Receive() // the stream went on all the time
		require.NoError(t, err)
		require.NoError(t, open.CloseRequest())
	}
}

// Proves API-160.
func TestAllProtocolsShareAConnectionWithHTTP(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_HTTP2": "http"})
	proxy := transport(t, true)
	for range 3 {
		for _, protocol := range []connect.ClientOption{connect.WithGRPC(), connect.WithGRPCWeb(), connect.WithProtoJSON()} {
			_, err := connectCaller("http://"+f.address, proxy, true, protocol).query(t.Context(), &backendv1.QueryRequest{})
			require.NoError(t, err)
		}
	}
}

func TestTheOtherOrderIsServedByHTTP(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	proxy := transport(t, true)
	for range 3 {
		_, err := connectCaller("http://"+f.address, proxy, true, connect.WithGRPCWeb()).query(t.Context(), &backendv1.QueryRequest{})
		require.NoError(t, err)
		_, err = connectCaller("http://"+f.address, proxy, true, connect.WithGRPC()).query(t.Context(), &backendv1.QueryRequest{})
		require.NoError(t, err)
	}
}

// Proves API-165.
func TestTLS(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	certificate, key, pool := certify(t)
	f := startGateway(t, role, map[string]string{"XMTP_TLS_CERT_FILE": certificate, "XMTP_TLS_KEY_FILE": key})
	secured := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}

	conn, err := grpc.NewClient(f.address, grpc.WithTransportCredentials(credentials.NewTLS(secured)))
	require.NoError(t, err)
	defer conn.Close()
	callers := map[string]caller{"native": nativeCaller(conn)}
	for _, http2 := range []bool{false, true} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!http2)
		protocols.SetHTTP2(http2)
		via := &http.Transport{Protocols: protocols, TLSClientConfig: secured.Clone()}
		defer via.CloseIdleConnections()
		callers[map[bool]string{false: "web over HTTP/1.1", true: "web over HTTP/2"}[http2]] = connectCaller("https://"+f.address, via, http2, connect.WithGRPCWeb())
	}
	for name, c := range callers {
		t.Run(name, func(t *testing.T) {
			unaryBehaves(t, role, c)
			staticBehaves(t, c)
			if c.subscribe != nil {
				bidiBehaves(t, c)
			}
		})
	}
}

// certify makes a certificate for loopback.
func certify(t *testing.T) (certificate, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	encodedKey, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	certificate, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encodedKey}), 0o600))
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return certificate, key, pool
}
