package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/strvals"
	corev1 "k8s.io/api/core/v1"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/services/gateway"
	"github.com/xmtp-selfhosted/backend/services/publisher"
	"github.com/xmtp-selfhosted/backend/services/reader"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

// program is what a role's binary makes of an environment.
type program struct {
	variables func() ([]env.FieldParams, error)
	load      func(map[string]string) error
}

func programOf[T config.Validator]() program {
	return program{
		func() ([]env.FieldParams, error) {
			return env.GetFieldParamsWithOptions(new(T), env.Options{Prefix: config.Prefix})
		},
		func(environment map[string]string) error {
			_, err := config.LoadFrom[T](environment)
			return err
		},
	}
}

var programs = map[string]program{
	"publisher": programOf[publisher.Config](),
	"reader":    programOf[reader.Config](),
	"streamer":  programOf[streamer.Config](),
	"gateway":   programOf[gateway.Config](),
}

// check fails when a variable is unknown to the role or the role refuses to start.
func (p program) check(t *testing.T, environment map[string]string) {
	t.Helper()
	params, err := p.variables()
	require.NoError(t, err)
	known := map[string]bool{"GOMEMLIMIT": true} // read by Go's runtime
	for _, param := range params {
		known[param.Key] = true
	}
	for name := range environment {
		require.True(t, known[name], "%s is not read by the role", name)
	}
	require.NoError(t, p.load(environment))
}

// operatorSecrets stand for the Secrets that the operator makes.
var operatorSecrets = map[string]map[string]string{
	"databases": {"primary-url": "postgres://xmtp@primary/xmtp", "replica-url": "postgres://xmtp@replica/xmtp"},
	"bus":       {"nats-url": "nats://bus:4222"},
}

func TestEachRoleStartsFromItsRenderedEnvironment(t *testing.T) {
	each(t, func(t *testing.T, m *Manifests) {
		for _, role := range roleNames {
			container := m.Deployments[name(role)].Spec.Template.Spec.Containers[0]
			environment, err := m.Environment(container, operatorSecrets)
			require.NoError(t, err)
			for _, variable := range harmless[role] {
				delete(environment, variable)
			}
			programs[role].check(t, environment)
		}
	})
}

// harmless are variables that the chart gives to all roles and one does not read.
var harmless = map[string][]string{"reader": {"XMTP_IDENTIFIER"}, "gateway": {"XMTP_DB_MAX_CONNS"}}

// Proves API-131.
func TestALimitIsTheSameInEveryRole(t *testing.T) {
	m := rendered(t, "everything")
	for _, role := range roleNames {
		require.Equal(t, "500", plain(m.Deployments[name(role)])["XMTP_MAX_QUERY_TOPICS"])
		require.Equal(t, "20s", plain(m.Deployments[name(role)])["XMTP_KEEPALIVE_INTERVAL"])
	}
}

func TestReplicasAreOneServerForAStreamer(t *testing.T) {
	m := rendered(t, "everything")
	environmentOf := func(role string) map[string]string {
		environment, err := m.Environment(m.Deployments[name(role)].Spec.Template.Spec.Containers[0], nil)
		require.NoError(t, err)
		return environment
	}
	require.Equal(t, "postgres://xmtp:secret@replica-1:5432/xmtp", environmentOf("streamer")["XMTP_REPLICA_URL"])
	require.Equal(t, "postgres://xmtp:secret@replica-0:5432/xmtp,postgres://xmtp:secret@replica-1:5432/xmtp", environmentOf("reader")["XMTP_REPLICA_URL"])
	require.NotContains(t, environmentOf("publisher"), "XMTP_REPLICA_URL")
	require.NotContains(t, environmentOf("gateway"), "XMTP_PRIMARY_URL", "the public role knows no database")
	require.NotContains(t, environmentOf("gateway"), "XMTP_NATS_URL")
}

func TestTheReplicaOfStreamersMayBeAKeyOfTheSecret(t *testing.T) {
	loaded, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	values, err := ReadValues("testdata/secrets.yaml")
	require.NoError(t, err)
	require.NoError(t, strvals.ParseInto("roles.streamer.replicaKey=streamer-replica-url", values))
	m, err := render(loaded, values)
	require.NoError(t, err)
	for role, key := range map[string]string{"reader": "replica-url", "streamer": "streamer-replica-url"} {
		container := m.Deployments[name(role)].Spec.Template.Spec.Containers[0]
		i := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "XMTP_REPLICA_URL" })
		require.Equal(t, "databases", container.Env[i].ValueFrom.SecretKeyRef.Name)
		require.Equal(t, key, container.Env[i].ValueFrom.SecretKeyRef.Key)
	}
}

func TestTheGatewayFindsTheRolesByTheirServices(t *testing.T) {
	each(t, func(t *testing.T, m *Manifests) {
		environment := plain(m.Deployments[name("gateway")])
		for role, variable := range map[string]string{"publisher": "XMTP_PUBLISHER_ENDPOINT", "reader": "XMTP_READER_ENDPOINT", "streamer": "XMTP_STREAMER_ENDPOINT"} {
			service, container := m.Services[name(role)], m.Deployments[name(role)].Spec.Template.Spec.Containers[0]
			require.Equal(t, fmt.Sprintf("%s:%d", service.Name, container.Ports[0].ContainerPort), environment[variable])
			require.Equal(t, fmt.Sprintf(":%d", container.Ports[0].ContainerPort), plain(m.Deployments[name(role)])["XMTP_"+strings.ToUpper(role)+"_LISTEN"])
		}
	})
}

func TestTheTimeToEndIsTheRoles(t *testing.T) {
	environment := plain(rendered(t, "everything").Deployments[name("reader")])
	loaded, err := config.LoadFrom[reader.Config](map[string]string{
		"XMTP_PRIMARY_URL": "postgres://h/d", "XMTP_DRAIN_TIMEOUT": environment["XMTP_DRAIN_TIMEOUT"], "XMTP_STOP_TIMEOUT": environment["XMTP_STOP_TIMEOUT"],
	})
	require.NoError(t, err)
	require.Equal(t, 20*time.Second, loaded.RPC.DrainTimeout)
	require.Equal(t, 7*time.Second, loaded.RPC.StopTimeout)
}
