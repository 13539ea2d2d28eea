package doctor_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
	"github.com/xmtp-selfhosted/backend/cmd/xmtpctl/doctor"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// chain answers for chain 1 as a node does.
func chain(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		result := "0x1"
		if strings.Contains(string(body), "eth_blockNumber") {
			result = "0x64"
		}
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":%q}`, result)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func look(t *testing.T, environment map[string]string, connection grpc.ClientConnInterface) []doctor.Finding {
	t.Helper()
	findings := doctor.Run(t.Context(), doctor.Options{Environment: environment, Endpoint: connection, Patience: 20 * time.Second})
	for _, finding := range findings {
		require.Equal(t, finding.State == doctor.Good, finding.Do == "", "whoever finds something says what to do: %v", finding)
		for _, secret := range []string{"hunter2", "key-of-the-chain"} {
			require.NotContains(t, finding.Found+finding.Do, secret)
		}
	}
	return findings
}

// notGood are the findings that are worth a word.
func notGood(findings []doctor.Finding) []string {
	var found []string
	for _, finding := range findings {
		if finding.State != doctor.Good {
			found = append(found, fmt.Sprintf("%s %s: %s", finding.State, finding.Area, finding.Found))
		}
	}
	return found
}

func TestDoctor(t *testing.T) {
	dir, err := os.MkdirTemp("", "xmtp-doctor-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	healthy := map[string]string{"XMTP_IDENTIFIER": "org.example.chat", "XMTP_CHAINS": "eip155:1=" + chain(t) + "/key-of-the-chain"}
	backend, err := stack.Start(t.Context(), stack.Options{Dir: dir, Environment: healthy, Settings: map[string]string{"fsync": "off"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backend.Stop()) })
	healthy["XMTP_PRIMARY_URL"], healthy["XMTP_REPLICA_URL"], healthy["XMTP_NATS_URL"] = backend.Endpoints.PrimaryURL, backend.Endpoints.ReplicaURL, backend.Endpoints.NATSURL
	connection, err := grpc.NewClient(backend.Endpoints.Gateway, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })

	findings := look(t, healthy, connection)
	require.Empty(t, notGood(findings))
	areas := map[string]bool{}
	for _, finding := range findings {
		areas[finding.Area] = true
	}
	require.Equal(t, map[string]bool{"configuration": true, "primary": true, "replica": true, "bus": true, "chain eip155:1": true, "endpoint": true}, areas)

	url := func(from, user string) string {
		return strings.Replace(from, "postgres://postgres@", "postgres://"+user+"@", 1)
	}
	for name, c := range map[string]struct {
		variable, value string
		expect          []string // parts of the findings that are not good, in order
	}{
		"a value out of range":           {"XMTP_MAX_QUERY_LIMIT", "0", []string{"WRONG configuration", "XMTP_MAX_QUERY_LIMIT"}},
		"a misspelled variable":          {"XMTP_MAX_QUERY_LIMITS", "7", []string{"warning configuration: XMTP_MAX_QUERY_LIMITS is read by no role"}},
		"the replica as the primary":     {"XMTP_PRIMARY_URL", healthy["XMTP_REPLICA_URL"], []string{"WRONG primary: it is a standby"}},
		"the primary as the replica":     {"XMTP_REPLICA_URL", healthy["XMTP_PRIMARY_URL"], []string{"warning replica: it is no standby"}},
		"an empty database":              {"XMTP_PRIMARY_URL", backend.Primary.URL("postgres"), []string{"WRONG primary: the schema has version 0"}},
		"no database":                    {"XMTP_PRIMARY_URL", "postgres://u:hunter2@127.0.0.1:1/xmtp", []string{"WRONG primary: cannot connect"}},
		"a user that does not exist":     {"XMTP_PRIMARY_URL", url(healthy["XMTP_PRIMARY_URL"], "nobody:hunter2"), []string{"WRONG primary: cannot connect"}},
		"no bus":                         {"XMTP_NATS_URL", "nats://u:hunter2@127.0.0.1:1", []string{"WRONG bus: cannot connect"}},
		"notices that are too large":     {"XMTP_NOTICE_INLINE_BYTES", "1048576", []string{"warning bus: max_payload"}},
		"another chain at the endpoint":  {"XMTP_CHAINS", strings.Replace(healthy["XMTP_CHAINS"], "eip155:1=", "eip155:8453=", 1), []string{"WRONG chain eip155:8453: the endpoint serves chain 1"}},
		"no chain at the endpoint":       {"XMTP_CHAINS", "eip155:1=http://127.0.0.1:1/key-of-the-chain", []string{"WRONG chain eip155:1: cannot be asked"}},
		"no chains":                      {"XMTP_CHAINS", "", []string{"warning chain"}},
		"another deployment's endpoint":  {"XMTP_IDENTIFIER", "org.example.other", []string{"WRONG endpoint: it calls itself"}},
		"one of two replicas is missing": {"XMTP_REPLICA_URL", healthy["XMTP_REPLICA_URL"] + ",postgres://u:hunter2@127.0.0.1:1/xmtp", []string{"WRONG configuration", "WRONG replica 2: cannot connect"}},
	} {
		t.Run(name, func(t *testing.T) {
			environment := maps.Clone(healthy)
			environment[c.variable] = c.value
			found := strings.Join(notGood(look(t, environment, connection)), "\n")
			for _, part := range c.expect {
				require.Contains(t, found, part)
			}
		})
	}

	t.Run("a gateway that is away", func(t *testing.T) {
		require.NoError(t, backend.StopRole(stack.Gateway))
		require.Contains(t, strings.Join(notGood(look(t, healthy, connection)), "\n"), "WRONG endpoint: health cannot be asked")
	})
	t.Run("a primary that is away", func(t *testing.T) {
		require.NoError(t, backend.Primary.Stop(pglocal.Immediate))
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			found := strings.Join(notGood(look(t, healthy, nil)), "\n")
			require.Contains(c, found, "WRONG primary: cannot connect")
			require.Contains(c, found, "WRONG replica: it does not stream")
		}, 10*time.Second, 100*time.Millisecond)
		require.NoError(t, backend.Primary.Restart(t.Context()))
	})
}
