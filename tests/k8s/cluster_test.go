package k8s

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is a control plane on this machine.
type cluster struct {
	dir    string // programs, keys and logs
	client *kubernetes.Clientset
}

// startCluster returns once the API server and the scheduler's and controllers'
// connections to it work.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{dir: t.TempDir()}
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, c.path("kubectl")))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", c.path("helm"), "helm.sh/helm/v3/cmd/helm")
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)

	client, peer, port := freePort(t), freePort(t), freePort(t)
	etcd := fmt.Sprintf("http://127.0.0.1:%d", client)
	other := fmt.Sprintf("http://127.0.0.1:%d", peer)
	c.start(t, "etcd", "--data-dir", c.path("etcd-data"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", other, "--initial-advertise-peer-urls", other, "--initial-cluster", "default="+other, "--unsafe-no-fsync", "--log-level", "error")
	c.writeKeys(t, port)
	c.start(t, "kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port), "--cert-dir", c.path("certificates"),
		"--authorization-mode", "Node,RBAC", "--token-auth-file", c.path("tokens"), "--service-cluster-ip-range", "10.0.0.0/16",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", c.path("accounts.key"), "--service-account-signing-key-file", c.path("accounts.key"))

	config, err := clientcmd.BuildConfigFromFlags("", c.path("kubeconfig"))
	require.NoError(t, err)
	config.QPS, config.Burst = 100, 200
	c.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		ready, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err == nil && string(ready) == "ok"
	}, 3*time.Minute, 200*time.Millisecond, "the API server is not ready")
	// The nodes of this test send no heartbeats.
	c.start(t, "kube-controller-manager", "--kubeconfig", c.path("kubeconfig"), "--leader-elect=false", "--secure-port", "0",
		"--service-account-private-key-file", c.path("accounts.key"), "--node-monitor-grace-period", "2h")
	c.start(t, "kube-scheduler", "--kubeconfig", c.path("kubeconfig"), "--leader-elect=false", "--secure-port", "0")
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// start runs one program of this binary until the test ends. Its log is shown
// when the test failed.
func (c *cluster) start(t *testing.T, name string, args ...string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	log, err := os.Create(c.path(name + ".log"))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, self, args...)
	command.Args[0] = name
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.Dir = c.dir
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		stop() // killed: what it holds is a folder of this test
		_ = command.Wait()
		_ = log.Close()
		if t.Failed() {
			t.Logf("%s:\n%s", name, tail(c.path(name+".log")))
		}
	})
}

func tail(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-4000):])
}

// writeKeys makes the key of service accounts, the administrator's token and a
// kubeconfig with it.
func (c *cluster) writeKeys(t *testing.T, port int) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	encoded := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	token := rand.Text()
	for name, content := range map[string]string{
		"accounts.key": string(encoded),
		"tokens":       token + `,admin,admin,"system:masters"` + "\n",
		"kubeconfig": fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "https://127.0.0.1:%d", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: here, context: {cluster: here, user: admin}}]
current-context: here
`, port, token),
	} {
		require.NoError(t, os.WriteFile(c.path(name), []byte(content), 0o600))
	}
}

// run runs a script in the repository's root, as an operator does who has helm
// and kubectl, and returns what it printed.
func (c *cluster) run(t *testing.T, script string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	command.Dir = "../.."
	command.Env = []string{"PATH=" + c.dir + ":" + os.Getenv("PATH"), "HOME=" + c.dir, "KUBECONFIG=" + c.path("kubeconfig")}
	output, err := command.CombinedOutput()
	t.Logf("%s\n%s", strings.TrimSpace(script), output)
	return string(output), err
}

func (c *cluster) mustRun(t *testing.T, script string) string {
	t.Helper()
	output, err := c.run(t, script)
	require.NoError(t, err, output)
	requireNoWarning(t, output)
	return output
}

func requireNoWarning(t *testing.T, output string) {
	t.Helper()
	require.NotContains(t, output, "warnings.go", "the API server has something to say")
	require.NotContains(t, output, "Warning:", "the API server has something to say")
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}
