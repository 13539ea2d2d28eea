package doctor_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xmtp-selfhosted/backend/cmd/xmtpctl/doctor"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// in are the findings of an area that are worth a word.
func in(area string, findings []doctor.Finding) []string {
	var found []string
	for _, line := range notGood(findings) {
		if strings.Contains(line, " "+area+": ") {
			found = append(found, line)
		}
	}
	return found
}

func TestChainsThatAnswerWrongly(t *testing.T) {
	for name, c := range map[string]struct {
		status              int
		chain, block, found string
	}{
		"a key that ran out": {http.StatusUnauthorized, "", "", "cannot be asked: it answers with HTTP status 401"},
		"a web page":         {http.StatusOK, "<html>", "", "cannot be asked: it does not answer in JSON-RPC"},
		"an error":           {http.StatusOK, `{"error":{"message":"no"}}`, "", "cannot be asked: it does not answer eth_chainId with a number"},
		"no blocks yet":      {http.StatusOK, `{"result":"0x1"}`, `{"result":"0x0"}`, "it does not know the newest block"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				w.WriteHeader(c.status)
				answer := c.chain
				if strings.Contains(string(body), "eth_blockNumber") {
					answer = c.block
				}
				fmt.Fprint(w, answer)
			}))
			t.Cleanup(server.Close)
			found := in("chain eip155:1", look(t, map[string]string{"XMTP_CHAINS": "eip155:1=" + server.URL + "/key-of-the-chain"}, nil))
			require.Equal(t, []string{"WRONG chain eip155:1: " + c.found}, found)
		})
	}
}

// TestABusThatFallsSilent: it accepts a connection and answers nothing more.
func TestABusThatFallsSilent(t *testing.T) {
	listener, err := freeport.Listen()
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	go func() {
		defer close(done)
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = connection.Close() }()
		fmt.Fprint(connection, `INFO {"server_id":"silent","version":"2.11.0","max_payload":1048576}`+"\r\n")
		greeted := false
		for lines := bufio.NewScanner(connection); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "PING") && !greeted {
				greeted = true
				fmt.Fprint(connection, "PONG\r\n")
			}
		}
	}()
	findings := doctor.Run(t.Context(), doctor.Options{Environment: map[string]string{"XMTP_NATS_URL": "nats://" + listener.Addr().String()}, Patience: 5 * time.Second})
	found := in("bus", findings)
	require.Len(t, found, 1)
	require.Contains(t, found[0], "WRONG bus: connected, but it does not answer")
}

func TestAnEndpointThatIsNotReady(t *testing.T) {
	listener, err := freeport.Listen()
	require.NoError(t, err)
	server := grpc.NewServer()
	states := health.NewServer()
	states.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(server, states)
	go func() { _ = server.Serve(listener) }() // Stop ends it
	t.Cleanup(server.Stop)
	connection, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	found := in("endpoint", look(t, nil, connection))
	require.Len(t, found, 2)
	require.Equal(t, "WRONG endpoint: it does not serve yet", found[0])
	require.Contains(t, found[1], "WRONG endpoint: the configuration cannot be read")
}
