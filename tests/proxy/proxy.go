// Package proxy runs nginx with the configuration that operators are given,
// deploy/proxy/nginx.conf, in front of a gateway.
package proxy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// Proxy is a running nginx.
type Proxy struct {
	// Address is its host and port.
	Address string
	// Roots holds the certificate that it shows.
	Roots *x509.CertPool
}

// URL is where it serves HTTPS.
func (p *Proxy) URL() string { return "https://" + p.Address }

// Configuration is the file as it is shipped.
func Configuration(t testing.TB) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here), "..", "..", "deploy", "proxy", "nginx.conf"))
	require.NoError(t, err)
	return string(text)
}

// Start runs nginx in front of a gateway until the test ends. Each edit replaces
// a text that the configuration must hold.
func Start(t testing.TB, gateway string, edits ...[2]string) *Proxy {
	t.Helper()
	dir := t.TempDir()
	p := &Proxy{Address: freeAddress(t)}
	certificate, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	p.Roots = SelfSigned(t, certificate, key)
	site := Configuration(t)
	for _, edit := range append(edits,
		[2]string{"server 127.0.0.1:5050;", "server " + gateway + ";"},
		[2]string{"listen 443 ", "listen " + p.Address + " "},
		[2]string{"/etc/nginx/tls/tls.crt", certificate},
		[2]string{"/etc/nginx/tls/tls.key", key},
	) {
		require.Contains(t, site, edit[0], "deploy/proxy/nginx.conf")
		site = strings.ReplaceAll(site, edit[0], edit[1])
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "site.conf"), []byte(site), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(around(dir)), 0o600))
	p.run(t, dir)
	return p
}

// around is the rest of a configuration: one process, no files outside of dir.
func around(dir string) string {
	var paths strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&paths, "  %s_temp_path %s/%s;\n", kind, dir, kind)
	}
	return fmt.Sprintf(`daemon off;
master_process off;
pid %[1]s/pid;
error_log stderr warn;
events { worker_connections 4096; }
http {
  access_log off;
%[2]s  include %[1]s/site.conf;
}
`, dir, paths.String())
}

// binary is nginx, which Debian keeps outside of a user's PATH.
func binary(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("nginx"); err == nil {
		return path
	}
	const path = "/usr/sbin/nginx"
	_, err := os.Stat(path)
	require.NoError(t, err, "nginx is missing; tools/need nginx installs it")
	return path
}

func (p *Proxy) run(t testing.TB, dir string) {
	t.Helper()
	var output bytes.Buffer
	command := exec.Command(binary(t), "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-e", "stderr")
	command.Stdout, command.Stderr = &output, &output
	require.NoError(t, command.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // terminated by the signal
	}()
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Logf("nginx said:\n%s", output.String())
		}
	})
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: p.Roots, MinVersion: tls.VersionTLS12}}
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := dialer.DialContext(context.Background(), "tcp", p.Address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case err := <-ended:
			ended <- err
			require.Fail(t, "nginx ended", "%v\n%s", err, output.String())
		case <-time.After(10 * time.Millisecond):
		}
		require.False(t, time.Now().After(deadline), "nginx does not answer: %v", err)
	}
}

// freeAddress is one that nothing listens on.
func freeAddress(t testing.TB) string {
	t.Helper()
	port, err := freeport.Pick()
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// SelfSigned writes a certificate of 127.0.0.1 and its key.
func SelfSigned(t testing.TB, certificateFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	encoded, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	encodedKey, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certificateFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: encoded}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encodedKey}), 0o600))
	parsed, err := x509.ParseCertificate(encoded)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return roots
}
