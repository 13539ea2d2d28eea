package k8s

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	// inline is a command for the cluster in a sentence.
	inline = regexp.MustCompile("`(kubectl --namespace xmtp [^`]+)`")
	// logs are of containers, and there are none: that their owner exists is
	// what can be said.
	logs = regexp.MustCompile(`(?m)^kubectl --namespace xmtp logs (\S+)( .*)?$`)
	// elsewhere needs more than a cluster: a container engine, the network, a
	// backend that runs.
	elsewhere = regexp.MustCompile(`(?m)^\s*(docker|helm repo|xmtpctl|XMTP_|pg_)|nats/nats`)
)

// shellBlocks are the commands of a page of docs for helm and kubectl, in order.
func shellBlocks(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	require.NoError(t, err)
	var scripts []string
	for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		if !elsewhere.MatchString(block[1]) {
			scripts = append(scripts, withoutLogs(block[1]))
		}
	}
	require.NotEmpty(t, scripts, page)
	return scripts
}

func withoutLogs(script string) string {
	return logs.ReplaceAllStringFunc(script, func(line string) string {
		object := logs.FindStringSubmatch(line)[1]
		if !strings.Contains(object, "/") {
			object = "pod/" + object
		}
		return "kubectl --namespace xmtp get " + object
	})
}

// runbookCommands are what the runbooks tell an operator to type into a shell
// with kubectl.
func runbookCommands(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../../docs/runbooks/*.md")
	require.NoError(t, err)
	var commands []string
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
			for line := range strings.Lines(block[1]) {
				if strings.HasPrefix(line, "kubectl") {
					commands = append(commands, withoutLogs(strings.TrimSpace(line)))
				}
			}
		}
		for _, found := range inline.FindAllStringSubmatch(string(text), -1) {
			commands = append(commands, withoutLogs(found[1]))
		}
	}
	require.Greater(t, len(commands), 8)
	return commands
}
