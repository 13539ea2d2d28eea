package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const chartDir = "../../deploy/k8s"

// installations are the ways to install that the tests render: each values file
// that the chart comes with, and those that switch everything on and off.
var installations = map[string][]string{
	"least":       {"testdata/secrets.yaml"},
	"small":       {"testdata/secrets.yaml", chartDir + "/values-small.yaml"},
	"large":       {"testdata/secrets.yaml", chartDir + "/values-large.yaml"},
	"everything":  {"testdata/inline.yaml"},
	"tls":         {"testdata/tls.yaml"},
	"large+extra": {"testdata/inline.yaml", chartDir + "/values-large.yaml"},
}

var roleNames = []string{"publisher", "reader", "streamer", "gateway"}

func rendered(t *testing.T, installation string) *Manifests {
	t.Helper()
	m, err := Render(chartDir, installations[installation]...)
	require.NoError(t, err)
	return m
}

// name is that of a role's objects.
func name(role string) string { return Release + "-xmtp-backend-" + role }

func each(t *testing.T, check func(t *testing.T, m *Manifests)) {
	t.Helper()
	for installation := range installations {
		t.Run(installation, func(t *testing.T) { check(t, rendered(t, installation)) })
	}
}

func TestEveryValuesFileOfTheChartIsRendered(t *testing.T) {
	files, err := filepath.Glob(chartDir + "/values-*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	used := slices.Concat(slices.Collect(maps.Values(installations))...)
	for _, file := range files {
		require.Contains(t, used, file)
	}
}

func TestLint(t *testing.T) {
	for installation, files := range installations {
		t.Run(installation, func(t *testing.T) {
			values, err := ReadValues(files...)
			require.NoError(t, err)
			for _, message := range lint.All(chartDir, values, Namespace, true).Messages {
				if message.Severity > support.InfoSev { // the icon is only a recommendation
					t.Error(message)
				}
			}
		})
	}
}

func TestEachRoleHasWhatItNeeds(t *testing.T) {
	each(t, func(t *testing.T, m *Manifests) {
		require.ElementsMatch(t, slices.Collect(maps.Keys(m.Deployments)), []string{name("publisher"), name("reader"), name("streamer"), name("gateway")})
		for _, role := range roleNames {
			deployment, service := m.Deployments[name(role)], m.Services[name(role)]
			require.NotNil(t, service)
			pod := deployment.Spec.Template
			require.Subset(t, pod.Labels, deployment.Spec.Selector.MatchLabels)
			require.Subset(t, pod.Labels, service.Spec.Selector)
			require.Equal(t, role != "gateway", service.Spec.ClusterIP == corev1.ClusterIPNone, "the gateway balances over the pods of the others itself")
			checkPod(t, pod.Spec)
			require.Len(t, service.Spec.Ports, 1)
			require.Equal(t, intstr.FromString("grpc"), service.Spec.Ports[0].TargetPort)
			if account := m.Accounts[pod.Spec.ServiceAccountName]; account == nil {
				require.Equal(t, "default", pod.Spec.ServiceAccountName)
			}
			checkProbes(t, pod.Spec.Containers[0])
			checkShutdown(t, role, pod.Spec)
			checkRollout(t, deployment)
			if budget := m.Budgets[name(role)]; budget != nil {
				require.Equal(t, 1, budget.Spec.MaxUnavailable.IntValue(), "drained one at a time")
				require.Equal(t, deployment.Spec.Selector, budget.Spec.Selector)
			}
			for _, spread := range pod.Spec.TopologySpreadConstraints {
				require.Equal(t, deployment.Spec.Selector, spread.LabelSelector)
			}
		}
	})
}

// checkPod is for the pods of the roles, the migration and the test alike.
func checkPod(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	require.True(t, *pod.SecurityContext.RunAsNonRoot)
	require.False(t, *pod.AutomountServiceAccountToken, "nothing here talks to Kubernetes")
	require.NotEmpty(t, pod.Containers)
	for _, container := range pod.Containers {
		require.True(t, *container.SecurityContext.ReadOnlyRootFilesystem)
		require.False(t, *container.SecurityContext.AllowPrivilegeEscalation)
		require.Equal(t, []corev1.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop)
		require.False(t, container.Resources.Requests.Cpu().IsZero())
		require.False(t, container.Resources.Requests.Memory().IsZero())
		require.False(t, container.Resources.Limits.Memory().IsZero())
		require.Regexp(t, `^ghcr\.io/xmtp-selfhosted/backend-[a-z]+:\d+\.\d+\.\d+$`, container.Image)
		require.Empty(t, container.Command, "the image has no shell, and its program is its entry point")
	}
}

func checkProbes(t *testing.T, container corev1.Container) {
	t.Helper()
	require.NotNil(t, container.LivenessProbe.TCPSocket, "liveness must not depend on a database")
	require.NotNil(t, container.StartupProbe.TCPSocket)
	ready := container.ReadinessProbe
	overTLS := slices.ContainsFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "XMTP_TLS_CERT_FILE" })
	require.Equal(t, overTLS, ready.GRPC == nil)
	if !overTLS {
		require.Equal(t, container.Ports[0].ContainerPort, ready.GRPC.Port)
	}
}

// checkShutdown compares the time that Kubernetes gives with the time that the
// role takes.
func checkShutdown(t *testing.T, role string, pod corev1.PodSpec) {
	t.Helper()
	needed := time.Duration(0)
	for _, v := range pod.Containers[0].Env {
		if v.Name == "XMTP_DRAIN_TIMEOUT" || v.Name == "XMTP_STOP_TIMEOUT" {
			took, err := time.ParseDuration(v.Value)
			require.NoError(t, err)
			needed += took
		}
	}
	require.NotZero(t, needed)
	lifecycle := pod.Containers[0].Lifecycle
	require.Equal(t, role == "gateway", lifecycle != nil, "clients of the gateway learn of its end by the Service")
	if lifecycle != nil {
		needed += time.Duration(lifecycle.PreStop.Sleep.Seconds) * time.Second
	}
	require.Greater(t, time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second, needed)
}

func checkRollout(t *testing.T, deployment *appsv1.Deployment) {
	t.Helper()
	rolling := deployment.Spec.Strategy.RollingUpdate
	require.Equal(t, 0, rolling.MaxUnavailable.IntValue())
	require.Equal(t, 1, rolling.MaxSurge.IntValue(), "one pod at a time is replaced")
	require.Positive(t, deployment.Spec.MinReadySeconds)
}

func TestAScalerOwnsTheNumberOfPods(t *testing.T) {
	each(t, func(t *testing.T, m *Manifests) {
		for _, role := range roleNames {
			deployment, scaler := m.Deployments[name(role)], m.Scalers[name(role)]
			require.Equal(t, scaler == nil, deployment.Spec.Replicas != nil, "either a scaler or a fixed number")
			if scaler == nil {
				continue
			}
			require.Equal(t, deployment.Name, scaler.Spec.ScaleTargetRef.Name)
			require.Less(t, *scaler.Spec.MinReplicas, scaler.Spec.MaxReplicas)
			require.NotZero(t, *scaler.Spec.Metrics[0].Resource.Target.AverageUtilization)
		}
	})
	streams := rendered(t, "everything").Scalers[name("streamer")].Spec.Metrics[1].Pods
	require.Equal(t, "xmtp_stream_sessions", streams.Metric.Name)
	require.Equal(t, "5k", streams.Target.AverageValue.String())
}

func TestOnlyTheGatewayReachesTheRoles(t *testing.T) {
	m := rendered(t, "everything")
	for _, role := range roleNames {
		policy := m.Policies[name(role)]
		require.NotNil(t, policy)
		require.Equal(t, m.Deployments[name(role)].Spec.Selector.MatchLabels, policy.Spec.PodSelector.MatchLabels)
		calls := policy.Spec.Ingress[0]
		require.Equal(t, "grpc", calls.Ports[0].Port.String())
		require.Len(t, calls.From, 1)
		if role == "gateway" {
			require.Equal(t, map[string]string{"name": "ingress"}, calls.From[0].NamespaceSelector.MatchLabels)
			continue
		}
		require.Equal(t, m.Deployments[name("gateway")].Spec.Selector.MatchLabels, calls.From[0].PodSelector.MatchLabels)
	}
	require.Empty(t, rendered(t, "tls").Policies)
}

func TestPrometheusFindsEveryPod(t *testing.T) {
	m := rendered(t, "everything")
	service, monitor := m.Services[name("metrics")], m.Monitors[Release+"-xmtp-backend"]
	require.Subset(t, service.Labels, monitor.Spec.Selector.MatchLabels)
	require.Equal(t, service.Spec.Ports[0].Name, monitor.Spec.Endpoints[0].Port)
	for _, role := range roleNames {
		pod := m.Deployments[name(role)].Spec.Template
		require.Subset(t, pod.Labels, service.Spec.Selector)
		metrics := pod.Spec.Containers[0].Ports[1]
		require.Equal(t, metrics.Name, service.Spec.Ports[0].TargetPort.String())
		require.Equal(t, fmt.Sprintf(":%d", metrics.ContainerPort), plain(m.Deployments[name(role)])["XMTP_METRICS_LISTEN"])
		for _, port := range m.Services[name(role)].Spec.Ports {
			require.NotEqual(t, metrics.Name, port.TargetPort.String(), "metrics are not public")
		}
		scrape := m.Policies[name(role)].Spec.Ingress[1]
		require.Equal(t, "metrics", scrape.Ports[0].Port.String())
		require.Equal(t, map[string]string{"name": "monitoring"}, scrape.From[0].NamespaceSelector.MatchLabels)
	}
	require.Empty(t, rendered(t, "least").Monitors)
}

func TestDashboardsAndRulesAreInstalledWhole(t *testing.T) {
	m := rendered(t, "everything")
	dashboards, err := filepath.Glob(chartDir + "/files/dashboards/*.json")
	require.NoError(t, err)
	require.Len(t, m.ConfigMaps, len(dashboards))
	for _, file := range dashboards {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		installed := m.ConfigMaps[name("dashboard-"+strings.TrimSuffix(filepath.Base(file), ".json"))]
		require.NotNil(t, installed)
		require.Equal(t, string(content), installed.Data[filepath.Base(file)])
		require.Equal(t, "1", installed.Labels["grafana_dashboard"])
	}
	rules, err := filepath.Glob(chartDir + "/files/rules/*.yaml")
	require.NoError(t, err)
	require.Len(t, m.Rules, len(rules))
	for _, file := range rules {
		require.NotEmpty(t, m.Rules[name(strings.TrimSuffix(filepath.Base(file), ".yaml"))].Spec.Groups)
	}
}

func TestTheSchemaIsMigratedBeforeTheRolesStart(t *testing.T) {
	for installation, ownSecret := range map[string]bool{"least": false, "everything": true} {
		m := rendered(t, installation)
		require.Len(t, m.Jobs, 1)
		job := m.Jobs[name("migrate")]
		require.Equal(t, "pre-install,pre-upgrade", job.Annotations["helm.sh/hook"])
		pod := job.Spec.Template.Spec
		checkPod(t, pod)
		require.Contains(t, pod.Containers[0].Image, "backend-publisher:")
		require.Equal(t, []string{"migrate"}, pod.Containers[0].Args)
		from := pod.Containers[0].Env[0].ValueFrom.SecretKeyRef
		secret := m.Secrets[from.Name]
		require.Equal(t, ownSecret, secret != nil)
		if ownSecret {
			require.Equal(t, "pre-install,pre-upgrade", secret.Annotations["helm.sh/hook"], "hooks run before the chart's own Secret exists")
			require.Less(t, secret.Annotations["helm.sh/hook-weight"], job.Annotations["helm.sh/hook-weight"])
			require.NotEmpty(t, secret.StringData[from.Key])
		}
		require.Equal(t, "false", plain(m.Deployments[name("publisher")])["XMTP_MIGRATE"])
	}
	without := rendered(t, "tls")
	require.Empty(t, without.Jobs)
	require.Equal(t, "true", plain(without.Deployments[name("publisher")])["XMTP_MIGRATE"])
}

func plain(deployment *appsv1.Deployment) map[string]string {
	values := map[string]string{}
	for _, v := range deployment.Spec.Template.Spec.Containers[0].Env {
		values[v.Name] = v.Value
	}
	return values
}

func TestProxiesReachTheGateway(t *testing.T) {
	m := rendered(t, "everything")
	ingress, route := m.Ingresses[Release+"-xmtp-backend"], m.Routes[Release+"-xmtp-backend"]
	require.Equal(t, name("gateway"), ingress.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name)
	require.Equal(t, m.Services[name("gateway")].Spec.Ports[0].Name, ingress.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Port.Name)
	require.Equal(t, name("gateway"), route.Spec.Rules[0].BackendRefs[0].Name)
	require.Equal(t, m.Services[name("gateway")].Spec.Ports[0].Port, route.Spec.Rules[0].BackendRefs[0].Port)
	require.Equal(t, "http", plain(m.Deployments[name("gateway")])["XMTP_GATEWAY_HTTP2"])
	require.Empty(t, rendered(t, "least").Ingresses)
	require.Empty(t, rendered(t, "least").Routes)
}

func TestHelmTestAsksTheGateway(t *testing.T) {
	each(t, func(t *testing.T, m *Manifests) {
		require.Len(t, m.Pods, 1)
		pod := m.Pods[name("test")]
		require.Equal(t, "test", pod.Annotations["helm.sh/hook"])
		checkPod(t, pod.Spec)
		for _, container := range pod.Spec.Containers {
			require.Contains(t, container.Image, "backend-xmtpctl:")
			require.Equal(t, name("gateway")+":5050", container.Args[1])
		}
	})
	for _, container := range rendered(t, "tls").Pods[name("test")].Spec.Containers {
		require.Equal(t, []string{"--tls", "--tls-server-name", "chat.example.org"}, container.Args[2:5], "the certificate is not for the Service's name")
	}
}

func TestNotesSayWhereItIs(t *testing.T) {
	require.Contains(t, rendered(t, "everything").Notes, "https://chat.example.org")
	require.Contains(t, rendered(t, "least").Notes, "docs/tls-and-proxies.md")
	require.NotContains(t, rendered(t, "everything").Notes, "secret")
}

func TestWrongValuesAreRefused(t *testing.T) {
	loaded, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	for wrong, expected := range map[string]string{
		"identifier: ''":                                               "identifier",
		"identifier: two words":                                        "identifier",
		"postgres: {existingSecret: ''}":                               "PostgreSQL is missing",
		"nats: {existingSecret: ''}":                                   "NATS is missing",
		"postgres: {primaryUrl: 'mysql://h/d'}":                        "primaryUrl",
		"postgres: {replicaUrl: 'postgres://h/d'}":                     "postgres.existingSecret has the URLs",
		"postgres: {primaryUrl: 'postgres://h/d'}":                     "postgres.existingSecret has the URLs",
		"roles: {streamer: {replicaUrl: postgres://h/d}}":              "postgres.existingSecret has the URLs",
		"roles: {reader: {replicaUrl: postgres://h/d}}":                "the reader takes no replicaUrl",
		"roles: {gateway: {replicaKey: replica-url}}":                  "the gateway takes no replicaKey",
		"postgres: {existingSecret: '', primaryUrl: 'postgres://h/d'}": "a replicaKey is a key of postgres.existingSecret",
		"replicaCount: 3":                                              "replicaCount",
		"roles: {publisher: {replica: 3}}":                             "replica",
		"env: {LOG_LEVEL: debug}":                                      "LOG_LEVEL",
		"roles: {streamer: {replicaUrl: 'a,b'}}":                       "replicaUrl",
		"tls: {existingSecret: gateway-tls}":                           "tls.host is required",
		"ingress: {enabled: true}":                                     "ingress.host is required",
		"gatewayApi: {enabled: true, host: h.example}":                 "parentRefs",
		"shutdown: {drainSeconds: -1}":                                 "drainSeconds",
	} {
		t.Run(wrong, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "values.yaml")
			require.NoError(t, os.WriteFile(file, []byte(wrong), 0o600))
			values, err := ReadValues("testdata/secrets.yaml", file)
			require.NoError(t, err)
			_, err = render(loaded, values)
			require.ErrorContains(t, err, expected)
		})
	}
	values, err := ReadValues("testdata/inline.yaml")
	require.NoError(t, err)
	delete(values["roles"].(map[string]any)["streamer"].(map[string]any), "replicaUrl")
	_, err = render(loaded, values)
	require.ErrorContains(t, err, "a streamer takes exactly one replica")
}

func TestStrictDecodingFindsAMisspelledField(t *testing.T) {
	m := &Manifests{}
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [], restartpolicy: Never}"
	require.ErrorContains(t, m.add(pod), "restartpolicy")
	require.NoError(t, m.add(strings.Replace(pod, "restartpolicy", "restartPolicy", 1)))
	require.ErrorContains(t, m.add(strings.Replace(pod, "restartpolicy", "restartPolicy", 1)), "twice")
	require.ErrorContains(t, m.add("apiVersion: v1\nkind: Gremlin"), "no kind that the tests know")
}
