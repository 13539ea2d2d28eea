package k8s

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var roles = []string{"publisher", "reader", "streamer", "gateway"}

// fullname begins the names of what release xmtp makes.
const fullname = "xmtp-xmtp-backend"

// TestKubernetes uses one cluster for all, each installation in a namespace of
// its own.
func TestKubernetes(t *testing.T) {
	c := startCluster(t)
	nodes := playKubelets(t, c.client)
	c.mustRun(t, "kubectl version; kubectl get nodes; helm version --short")
	installKinds(t, c)
	t.Run("as the documents say", func(t *testing.T) { documents(t, c, nodes) })
	t.Run("a migration that fails", func(t *testing.T) { failedMigration(t, c, nodes) })
	t.Run("a large installation", func(t *testing.T) { large(t, c) })
	t.Run("with every option", func(t *testing.T) { everyOption(t, c) })
	t.Run("with TLS and without a migration job", func(t *testing.T) { tls(t, c) })
}

// installKinds adds the kinds that the Prometheus operator and the Gateway API
// define, as they publish them.
func installKinds(t *testing.T, c *cluster) {
	t.Helper()
	for module, manifests := range map[string][]string{
		"github.com/prometheus-operator/prometheus-operator@v0.85.0": {"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml", "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"},
		"sigs.k8s.io/gateway-api@v1.5.1":                             {"config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"},
	} {
		output, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module).Output()
		require.NoError(t, err, "%s", output)
		var downloaded struct{ Dir string }
		require.NoError(t, json.Unmarshal(output, &downloaded))
		for _, manifest := range manifests {
			c.mustRun(t, "kubectl apply --server-side -f "+downloaded.Dir+"/"+manifest)
		}
	}
	c.mustRun(t, "kubectl wait --for condition=Established --timeout 1m crd --all")
}

// documents follows docs/install.md, upgrade.md, tls-and-proxies.md, postgresql.md
// and the runbooks, as an operator would.
func documents(t *testing.T, c *cluster, nodes *kubelets) {
	install := shellBlocks(t, "install.md")
	require.Len(t, install, 5, "the namespace, the secret, the chart, the doctor, the end")
	for _, script := range install[:4] {
		c.mustRun(t, script)
	}
	require.Equal(t, []migration{{image: "registry.example.org/xmtp/backend-publisher:0.1.0", deployed: map[string]string{}}}, nodes.takeMigrations(), "the schema is there before the roles")
	c.requireImages(t, "xmtp", "registry.example.org/xmtp/backend-%s:0.1.0")
	c.requireNoHooks(t, "xmtp")

	upgrade := shellBlocks(t, "upgrade.md")
	require.Len(t, upgrade, 2, "forward and back")
	c.mustRun(t, upgrade[0])
	before := map[string]string{}
	for _, role := range roles {
		before[fullname+"-"+role] = "registry.example.org/xmtp/backend-" + role + ":0.1.0"
	}
	require.Equal(t, []migration{{image: "registry.example.org/xmtp/backend-publisher:0.2.0", deployed: before}}, nodes.takeMigrations(), "the schema is upgraded before the roles")
	c.requireImages(t, "xmtp", "registry.example.org/xmtp/backend-%s:0.2.0")
	c.requireNoHooks(t, "xmtp")
	c.mustRun(t, upgrade[1])
	require.Empty(t, nodes.takeMigrations(), "schemas do not go back")
	c.requireImages(t, "xmtp", "registry.example.org/xmtp/backend-%s:0.1.0")

	broken := strings.Split(upgrade[0], "\n")[0]
	output, err := c.run(t, strings.Replace(broken, "0.2.0", strings.TrimPrefix(brokenTag, ":"), 1)+" --set migration.backoffLimit=0")
	require.Error(t, err, output)
	c.requireImages(t, "xmtp", "registry.example.org/xmtp/backend-%s:0.1.0")
	c.mustRun(t, "kubectl --namespace xmtp get job/"+fullname+"-migrate") // its log can be read

	for _, script := range slices.Concat(shellBlocks(t, "postgresql.md"), shellBlocks(t, "tls-and-proxies.md")) {
		c.mustRun(t, script)
	}
	c.mustRun(t, "kubectl --namespace xmtp get ingress/"+fullname+" httproute/"+fullname)
	for _, command := range runbookCommands(t) {
		// One after the other they come sooner than any operator's: kubectl restarts nothing twice within a second.
		require.EventuallyWithT(t, func(at *assert.CollectT) {
			output, err := c.run(t, command)
			if err != nil && !strings.Contains(output, "within the past second") {
				require.NoError(t, err, output)
			}
			require.NoError(at, err)
			requireNoWarning(t, output)
		}, time.Minute, time.Second)
	}
	c.mustRun(t, install[4])
	require.EventuallyWithT(t, func(at *assert.CollectT) { // the garbage collector's part takes a moment
		left := c.mustRun(t, "kubectl --namespace xmtp get all,secrets,configmaps,pdb,hpa,networkpolicies,serviceaccounts,ingresses,httproutes --selector app.kubernetes.io/instance=xmtp -o name --ignore-not-found")
		require.Empty(at, left, "nothing of the release is left")
	}, time.Minute, time.Second)
	c.mustRun(t, "kubectl --namespace xmtp get secret xmtp")
}

// failedMigration ends an installation in its hook and mends it as the document
// says.
func failedMigration(t *testing.T, c *cluster, nodes *kubelets) {
	namespace(t, c, "mended")
	c.mustRun(t, "kubectl --namespace mended create secret generic xmtp --from-literal=primary-url=unused --from-literal=nats-url=unused")
	nodes.takeMigrations()
	command := "xmtp deploy/k8s --namespace mended -f deploy/k8s/values-small.yaml --set identifier=org.example.chat,postgres.existingSecret=xmtp,nats.existingSecret=xmtp"
	output, err := c.run(t, "helm install "+command+" --set migration.backoffLimit=0,image.tag="+strings.TrimPrefix(brokenTag, ":"))
	require.Error(t, err, output)
	require.Empty(t, c.deployments(t, "mended"), "no role starts on a schema that is not there")
	c.mustRun(t, "kubectl --namespace mended get job/"+fullname+"-migrate")
	c.mustRun(t, "helm upgrade --install "+command+" --wait")
	ran := nodes.takeMigrations()
	require.Len(t, ran, 2)
	require.True(t, ran[0].failed)
	require.False(t, ran[1].failed)
	c.requireImages(t, "mended", "ghcr.io/xmtp-selfhosted/backend-%s:0.1.0")
}

// large runs the command at the head of the values file. The autoscalers are
// Kubernetes' own, without metrics, and the pods are placed by its scheduler.
func large(t *testing.T, c *cluster) {
	namespace(t, c, "large")
	c.mustRun(t, "kubectl --namespace large create secret generic xmtp --from-literal=primary-url=unused --from-literal=replica-url=unused --from-literal=nats-url=unused")
	values, err := os.ReadFile("../../deploy/k8s/values-large.yaml")
	require.NoError(t, err)
	command := regexp.MustCompile(`(?m)^# (helm install .*)$`).FindStringSubmatch(string(values))
	require.NotNil(t, command)
	c.mustRun(t, "export HELM_NAMESPACE=large\n"+command[1]+"\nhelm test xmtp")
	for _, role := range roles {
		require.EventuallyWithT(t, func(at *assert.CollectT) {
			pods, err := c.client.CoreV1().Pods("large").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + role})
			require.NoError(at, err)
			used := map[string]bool{}
			for _, pod := range pods.Items {
				used[pod.Spec.NodeName] = true
			}
			require.Len(at, pods.Items, 3, "the least that the autoscaler allows")
			require.Len(at, used, 3, "one in each zone")
		}, 3*time.Minute, time.Second, role)
	}
	c.requireImages(t, "large", "ghcr.io/xmtp-selfhosted/backend-%s:0.1.0")
	c.mustRun(t, "kubectl --namespace large get servicemonitor/"+fullname+" prometheusrule/"+fullname+"-alerts configmap/"+fullname+"-dashboard-overview")
}

// everyOption installs what tests/deploy renders with everything switched on.
func everyOption(t *testing.T, c *cluster) {
	namespace(t, c, "everything")
	c.mustRun(t, "kubectl create priorityclass messaging --value 1000")
	c.mustRun(t, "helm install xmtp deploy/k8s --namespace everything -f tests/deploy/testdata/inline.yaml") // nobody gives its LoadBalancer an address to wait for
	c.requireImages(t, "everything", "ghcr.io/xmtp-selfhosted/backend-%s:1.2.3")
	c.mustRun(t, "helm test xmtp --namespace everything; kubectl --namespace everything get ingress,httproute,hpa,servicemonitor,prometheusrule")
	c.requireNoHooks(t, "everything")
	_, err := c.client.CoreV1().Secrets("everything").Get(t.Context(), fullname+"-migrate", metav1.GetOptions{})
	require.True(t, errors.IsNotFound(err), "the hook's copy of the URL is gone")
}

func tls(t *testing.T, c *cluster) {
	namespace(t, c, "tls")
	c.mustRun(t, "kubectl --namespace tls create secret generic bus --from-literal=nats-url=unused; kubectl --namespace tls create secret generic gateway-tls --from-literal=tls.crt=unused --from-literal=tls.key=unused")
	c.mustRun(t, "helm install xmtp deploy/k8s --namespace tls -f tests/deploy/testdata/tls.yaml --wait; helm test xmtp --namespace tls")
	c.requireImages(t, "tls", "ghcr.io/xmtp-selfhosted/backend-%s:0.1.0")
}

// namespace makes one in which Kubernetes refuses every pod that is less than
// restricted.
func namespace(t *testing.T, c *cluster, name string) {
	t.Helper()
	c.mustRun(t, fmt.Sprintf("kubectl create namespace %s; kubectl label namespace %s pod-security.kubernetes.io/enforce=restricted", name, name))
}

func (c *cluster) deployments(t *testing.T, namespace string) []appsv1.Deployment {
	t.Helper()
	found, err := c.client.AppsV1().Deployments(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return found.Items
}

// requireImages waits until each role runs its image and nothing else.
func (c *cluster) requireImages(t *testing.T, namespace, image string) {
	t.Helper()
	expected := map[string]string{}
	for _, role := range roles {
		expected[fullname+"-"+role] = fmt.Sprintf(image, role)
	}
	require.EventuallyWithT(t, func(at *assert.CollectT) {
		images := map[string]string{}
		for _, deployment := range c.deployments(t, namespace) {
			images[deployment.Name] = deployment.Spec.Template.Spec.Containers[0].Image
			status := deployment.Status
			require.Equal(at, deployment.Generation, status.ObservedGeneration)
			require.Positive(at, status.Replicas)
			require.Equal(at, []int32{status.Replicas, status.Replicas, status.Replicas}, []int32{status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas}, deployment.Name)
		}
		require.Equal(at, expected, images)
	}, 2*time.Minute, 200*time.Millisecond)
}

// requireNoHooks: what a hook made and what has done its work is gone.
func (c *cluster) requireNoHooks(t *testing.T, namespace string) {
	t.Helper()
	jobs, err := c.client.BatchV1().Jobs(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(jobs.Items, func(j batchv1.Job) bool { return j.DeletionTimestamp == nil }))
}
