package deploy

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
)

const repository = "../.."

// compose loads the file as docker compose does.
func compose(t *testing.T, environment ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{repository + "/docker-compose.yml"}, cli.WithWorkingDirectory(repository), cli.WithEnv(environment))
	require.NoError(t, err)
	project, err := options.LoadProject(t.Context())
	require.NoError(t, err)
	return project
}

func variables(service types.ServiceConfig) map[string]string {
	values := map[string]string{}
	for name, value := range service.Environment {
		if value != nil {
			values[name] = *value
		}
	}
	return values
}

func TestComposeRunsTheWholeBackend(t *testing.T) {
	project := compose(t)
	require.ElementsMatch(t, slices.Concat(roleNames, []string{"primary", "replica", "nats", "migrate", "collector", "prometheus", "tempo", "grafana"}), project.ServiceNames())
	for name, service := range project.Services {
		require.Regexp(t, `^[a-z0-9./-]+:[a-z0-9.-]+$`, service.Image, "%s has an image with a tag", name)
		for _, port := range service.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s is not offered to the network", name)
		}
		for _, volume := range service.Volumes {
			if volume.Type == types.VolumeTypeBind {
				_, err := os.Stat(volume.Source)
				require.NoError(t, err, "what %s mounts exists", name)
			}
		}
	}
}

func TestComposeStartsTheRolesFromVariablesThatTheyKnow(t *testing.T) {
	project := compose(t, "XMTP_IDENTIFIER=org.example.chat", "XMTP_CHAINS=eip155:1=https://chain.example.org", "POSTGRES_PASSWORD=other", "XMTP_VERSION=1.2.3")
	for _, role := range roleNames {
		service := project.Services[role]
		programs[role].check(t, variables(service))
		require.Equal(t, role, *service.Build.Args["ROLE"])
		require.Contains(t, service.Image, "/backend-"+role+":1.2.3", "the image is named as in the chart")
		require.Equal(t, "1.2.3", *service.Build.Args["VERSION"], "the program knows the version that its image is named by")
		require.True(t, service.ReadOnly)
		require.Equal(t, []string{"ALL"}, service.CapDrop)
		require.Greater(t, time.Duration(*service.StopGracePeriod), 15*time.Second)
		if url, given := variables(service)["XMTP_PRIMARY_URL"]; given {
			require.Contains(t, url, "xmtp:other@primary:")
		}
		for name, value := range variables(service) {
			if slices.Contains([]string{"XMTP_IDENTIFIER", "XMTP_CHAINS"}, name) {
				require.NotEmpty(t, value)
				require.Equal(t, value, variables(project.Services["gateway"])[name], "the same in every role")
			}
		}
	}
	require.NotContains(t, variables(project.Services["gateway"]), "XMTP_PRIMARY_URL")
}

func TestComposeNamesServicesThatExist(t *testing.T) {
	project := compose(t)
	gateway := variables(project.Services["gateway"])
	for _, role := range []string{"publisher", "reader", "streamer"} {
		host, port, found := strings.Cut(gateway["XMTP_"+strings.ToUpper(role)+"_ENDPOINT"], ":")
		require.True(t, found)
		require.Equal(t, role, host)
		require.Equal(t, port, strings.TrimPrefix(defaultOf(t, role, "XMTP_"+strings.ToUpper(role)+"_LISTEN"), ":"))
	}
	require.Equal(t, "5050", project.Services["gateway"].Ports[0].Published)
	require.Equal(t, ":5050", defaultOf(t, "gateway", "XMTP_GATEWAY_LISTEN"))
	for _, role := range roleNames {
		for name, value := range variables(project.Services[role]) {
			_, after, isURL := strings.Cut(value, "://")
			if !isURL {
				continue
			}
			host := after[strings.LastIndex(after, "@")+1:]
			host = host[:strings.IndexByte(host, ':')]
			require.Contains(t, slices.Collect(maps.Keys(project.Services)), host, name)
		}
	}
	require.Equal(t, types.ServiceConditionCompletedSuccessfully, project.Services["publisher"].DependsOn["migrate"].Condition)
	require.Equal(t, types.ShellCommand{"migrate"}, project.Services["migrate"].Command)
	require.Equal(t, project.Services["publisher"].Image, project.Services["migrate"].Image)
}

// defaultOf is the value that a role takes when a variable is not set.
func defaultOf(t *testing.T, role, variable string) string {
	t.Helper()
	params, err := programs[role].variables()
	require.NoError(t, err)
	for _, param := range params {
		if param.Key == variable {
			return param.DefaultValue
		}
	}
	t.Fatalf("the %s does not read %s", role, variable)
	return ""
}
