package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

func TestTheDocumentIsCurrent(t *testing.T) {
	t.Chdir("../..")
	require.NoError(t, run(true))
}

func TestAMetricIsALine(t *testing.T) {
	text := render([]telemetry.Description{{
		Name: "xmtp_things_total", Type: "counter", Meaning: "Things.", Roles: []string{"streamer", "gateway"},
		Labels: []telemetry.Label{{Name: "kind", Meaning: "of thing", Values: []string{"a", "b"}}, {Name: "server", Meaning: "where"}},
	}})
	require.Contains(t, text, "\n| `xmtp_things_total` | counter | gateway, streamer | `kind`: of thing (a, b)<br>`server`: where | Things. |\n")
}
