package k8s

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// brokenTag is the tag of images whose programs fail.
const brokenTag = ":broken"

// kubelets play the nodes: no container is started, no probe is made. A pod that
// the scheduler placed says that it has long been ready; one that is to end has
// ended well, unless its image is broken; one that is deleted is gone.
type kubelets struct {
	client *kubernetes.Clientset

	mu sync.Mutex
	// migrations are what the namespace held when a migration's pod ran.
	migrations []migration
}

// migration is a run of the chart's hook.
type migration struct {
	image string
	// deployed are the images of the Deployments at that moment, by name.
	deployed map[string]string
	failed   bool
}

// playKubelets adds three nodes in three zones and plays them until the test ends.
func playKubelets(t *testing.T, client *kubernetes.Clientset) *kubelets {
	t.Helper()
	room := corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110")}
	for i := range 3 {
		name := fmt.Sprintf("node-%d", i)
		node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", i), "disk": "fast",
		}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		now := metav1.Now()
		node.Status = corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now, Reason: "Played", Message: "it is played"},
		}}
		_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	k := &kubelets{client: client}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			k.round(ctx)
			time.Sleep(100 * time.Millisecond) // the pace of the game
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return k
}

// round looks at each pod once. What fails is tried again in the next round.
func (k *kubelets) round(ctx context.Context) {
	pods, err := k.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case pod.Spec.NodeName == "":
		case pod.DeletionTimestamp != nil:
			_ = k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
		case pod.Status.Phase != corev1.PodPending:
		case pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
			k.finish(ctx, pod)
		default:
			k.report(ctx, pod, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: longAgo()}})
		}
	}
}

// longAgo lets a pod have been ready for longer than any minReadySeconds.
func longAgo() metav1.Time { return metav1.NewTime(time.Now().Add(-time.Hour)) }

// finish ends a pod that runs once.
func (k *kubelets) finish(ctx context.Context, pod *corev1.Pod) {
	phase, code := corev1.PodSucceeded, int32(0)
	if strings.HasSuffix(pod.Spec.Containers[0].Image, brokenTag) {
		phase, code = corev1.PodFailed, 1
	}
	if pod.Labels["app.kubernetes.io/component"] == "migrate" {
		seen := migration{image: pod.Spec.Containers[0].Image, deployed: map[string]string{}, failed: phase == corev1.PodFailed}
		deployments, err := k.client.AppsV1().Deployments(pod.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		for _, deployment := range deployments.Items {
			seen.deployed[deployment.Name] = deployment.Spec.Template.Spec.Containers[0].Image
		}
		k.mu.Lock()
		k.migrations = append(k.migrations, seen)
		k.mu.Unlock()
	}
	k.report(ctx, pod, phase, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, StartedAt: longAgo(), FinishedAt: metav1.Now()}})
}

func (k *kubelets) report(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) {
	ready := phase == corev1.PodRunning
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Phase = phase
	for _, condition := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition, Status: status, LastTransitionTime: longAgo()})
	}
	for _, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: ready, Started: &ready, State: state, ContainerID: "played://" + string(pod.UID),
		})
	}
	if ready {
		pod.Status.PodIP = fmt.Sprintf("10.1.%d.%d", pod.UID[0], pod.UID[1])
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	}
	_, _ = k.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}) // a conflict is tried again
}

// takeMigrations returns the runs of the hook since the last call.
func (k *kubelets) takeMigrations() []migration {
	k.mu.Lock()
	defer k.mu.Unlock()
	taken := k.migrations
	k.migrations = nil
	return taken
}
