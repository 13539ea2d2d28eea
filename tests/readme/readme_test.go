// Package readme_test runs what the README tells people to type.
package readme_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
)

// grpcurl is built from its module, at a version that is known to work.
const grpcurl = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"

func start(t *testing.T) *stack.Stack {
	t.Helper()
	dir, err := os.MkdirTemp("", "xmtp-readme-") // unlike t.TempDir, PostgreSQL's own user can enter it
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s, err := stack.Start(t.Context(), stack.Options{Dir: dir, Settings: map[string]string{"fsync": "off"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	return s
}

// run returns what a command says on its standard output.
func run(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, arguments...)
	var said strings.Builder
	command.Stderr = &said
	output, err := command.Output()
	require.NoError(t, err, "%s %v: %s%s", name, arguments, output, said.String())
	return string(output)
}

// fetch brings grpcurl's modules into the cache. A connection that is reset on the
// way says nothing about the backend, so it tries up to three times.
func fetch(t *testing.T) {
	t.Helper()
	var output []byte
	var err error
	for range 3 {
		command := exec.CommandContext(t.Context(), "go", "install", grpcurl)
		command.Env = append(os.Environ(), "GOBIN="+t.TempDir())
		if output, err = command.CombinedOutput(); err == nil {
			return
		}
	}
	require.NoError(t, err, "%s", output)
}

// Proves API-164.
func TestCurlAndGrpcurl(t *testing.T) {
	s := start(t)
	t.Run("curl as in the README", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
		require.NoError(t, err)
		commands := regexp.MustCompile(`(?m)^curl (.*\\\n)*.*$`).FindAllString(string(text), -1)
		require.NotEmpty(t, commands, "README.md has no curl command")
		for _, command := range commands {
			require.Contains(t, command, "127.0.0.1:5050")
			answer := run(t, "sh", "-c", strings.ReplaceAll(command, "127.0.0.1:5050", s.Endpoints.Gateway))
			var configuration struct{ Identifier, ServerVersion string }
			require.NoError(t, json.Unmarshal([]byte(answer), &configuration), "%s", answer)
			require.Equal(t, "local.xmtp.dev", configuration.Identifier)
			require.NotEmpty(t, configuration.ServerVersion)
		}
	})
	t.Run("grpcurl with reflection", func(t *testing.T) {
		fetch(t)
		services := run(t, "go", "run", grpcurl, "-plaintext", s.Endpoints.Gateway, "list")
		for _, service := range []string{"PublishService", "QueryService", "SubscriptionService", "IdentityService", "ConfigurationService"} {
			require.Contains(t, services, "xmtp.backend.v1."+service)
		}
		require.Contains(t, services, "grpc.health.v1.Health")
		answer := run(t, "go", "run", grpcurl, "-plaintext", "-d", `{"queries":[{"topic":{"topic":"AAECAwQFBgcICQoLDA0ODxA="}}]}`,
			s.Endpoints.Gateway, "xmtp.backend.v1.QueryService/Query")
		require.JSONEq(t, `{"continuation":{}}`, answer, "a topic without messages")
		require.Contains(t, run(t, "go", "run", grpcurl, "-plaintext", s.Endpoints.Gateway, "grpc.health.v1.Health/Check"), "SERVING")
	})
}
