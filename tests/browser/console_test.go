package browser_test

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// picture makes the one in the documentation again:
// go test ./tests/browser -run TestConsole -picture
var picture = flag.Bool("picture", false, "write docs/pictures/console.png")

// shown is what a person reads on the console.
type shown struct {
	Probes        map[string]string // class and text by role
	Rows          []string
	Configuration string
	Title         string
}

const read = `({
  probes: Object.fromEntries([...document.querySelectorAll(".probe")].map((p) => [p.id.replace("probe-", ""), p.className + ": " + p.innerText])),
  rows: [...document.querySelectorAll("#envelopes tbody tr")].map((row) => row.innerText),
  configuration: document.getElementById("configuration").innerText,
  title: document.title,
})`

// readUntil polls the page.
func readUntil(t *testing.T, page tab, check func(c *assert.CollectT, seen shown)) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { check(c, evaluate[shown](t, page, read)) }, soon, 20*time.Millisecond)
}

func TestConsole(t *testing.T) {
	s := startStack(t, map[string]string{
		"XMTP_CONSOLE": "true", "XMTP_IDENTIFIER": "org.example.chat", "XMTP_GATEWAY_HOLD": hold,
		"XMTP_MIN_LIBXMTP_VERSION": "1.2.0",
	})
	connection, err := grpc.NewClient(s.Endpoints.Gateway, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer connection.Close()
	kit := testkit.New(2)
	group := kit.Group()
	publish := func(envelope *backendv1.ClientEnvelope) {
		_, err := backendv1.NewPublishServiceClient(connection).Publish(t.Context(), &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{envelope}})
		require.NoError(t, err)
	}
	for i := range 3 {
		publish(kit.GroupMessage(group, 300*(i+1)))
	}
	page := openTab(t, "http://"+s.Endpoints.Gateway+"/#"+hex.EncodeToString([]byte(group.Topic())))
	readUntil(t, page, func(c *assert.CollectT, seen shown) {
		for _, role := range []string{"gateway", "publisher", "reader", "streamer"} {
			assert.Contains(c, seen.Probes[role], "good", role)
		}
		assert.Len(c, seen.Rows, 3, "the history")
		assert.Contains(c, seen.Configuration, "25 MiB")
		assert.Equal(c, "org.example.chat", seen.Title)
	})
	// Live, newest first.
	publish(kit.Commit(group, 7))
	readUntil(t, page, func(c *assert.CollectT, seen shown) {
		if assert.Len(c, seen.Rows, 4) {
			assert.Contains(c, seen.Rows[0], "commit or proposal")
			assert.NotContains(c, seen.Rows[0], "\t0 bytes")
			assert.Contains(c, seen.Rows[0], " ms")
			assert.Contains(c, seen.Rows[1], "history")
		}
	})
	for i := range 4 {
		publish(kit.GroupMessage(group, 120+431*i))
	}
	readUntil(t, page, func(c *assert.CollectT, seen shown) { assert.Len(c, seen.Rows, 8) })
	if *picture {
		evaluate[any](t, page, "new Promise((resolve) => setTimeout(resolve, 11000))") // past the first, cold probes
		path := filepath.Join("..", "..", "docs", "pictures", "console.png")
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, page.screenshot(t), 0o644))
	}

	require.NoError(t, s.StopRole(stack.Reader))
	readUntil(t, page, func(c *assert.CollectT, seen shown) {
		assert.Contains(c, seen.Probes["reader"], "bad")
		assert.Contains(c, seen.Probes["reader"], "unavailable")
		assert.Contains(c, seen.Probes["publisher"], "good")
	})
	require.NoError(t, s.StartRole(stack.Reader))
	readUntil(t, page, func(c *assert.CollectT, seen shown) { assert.Contains(c, seen.Probes["reader"], "good") })
}
