// Package deploy renders the Helm chart as an installation would, for the tests
// that check what Kubernetes would be told. It is a module of its own, so that
// nothing else depends on Helm and the types of Kubernetes.
package deploy

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Release and Namespace are the names under which the chart is rendered.
const (
	Release   = "xmtp"
	Namespace = "chat"
)

// Manifests is what a chart renders to, each object by its name.
type Manifests struct {
	Deployments map[string]*appsv1.Deployment
	Services    map[string]*corev1.Service
	Secrets     map[string]*corev1.Secret
	ConfigMaps  map[string]*corev1.ConfigMap
	Accounts    map[string]*corev1.ServiceAccount
	Pods        map[string]*corev1.Pod
	Jobs        map[string]*batchv1.Job
	Scalers     map[string]*autoscalingv2.HorizontalPodAutoscaler
	Budgets     map[string]*policyv1.PodDisruptionBudget
	Policies    map[string]*networkingv1.NetworkPolicy
	Ingresses   map[string]*networkingv1.Ingress
	Routes      map[string]*HTTPRoute
	Monitors    map[string]*ServiceMonitor
	Rules       map[string]*PrometheusRule
	Notes       string
}

// Render loads the chart and renders it with the values files, later ones over
// earlier ones. Every object is decoded strictly: an unknown or repeated field is
// an error.
func Render(chartDir string, valuesFiles ...string) (*Manifests, error) {
	loaded, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, fmt.Errorf("load the chart: %w", err)
	}
	values, err := ReadValues(valuesFiles...)
	if err != nil {
		return nil, err
	}
	return render(loaded, values)
}

// ReadValues merges values files, later ones over earlier ones.
func ReadValues(files ...string) (map[string]any, error) {
	values := map[string]any{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read values: %w", err)
		}
		read := map[string]any{}
		if err := yaml.UnmarshalStrict(content, &read); err != nil {
			return nil, fmt.Errorf("values of %s: %w", file, err)
		}
		values = chartutil.MergeTables(read, values)
	}
	return values, nil
}

func render(loaded *chart.Chart, values map[string]any) (*Manifests, error) {
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}
	options := chartutil.ReleaseOptions{Name: Release, Namespace: Namespace, Revision: 1, IsInstall: true}
	complete, err := chartutil.ToRenderValues(loaded, values, options, capabilities)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Render(loaded, complete)
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	m := &Manifests{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case strings.HasSuffix(name, "NOTES.txt"):
			m.Notes = files[name]
		case strings.HasSuffix(name, ".yaml"):
			for _, document := range strings.Split("\n"+files[name], "\n---") {
				if err := m.add(document); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", name, err))
				}
			}
		}
	}
	return m, errors.Join(errs...)
}

// add decodes one document into the map of its kind.
func (m *Manifests) add(document string) error {
	kind := metav1.TypeMeta{}
	if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case " ": // only comments
		return nil
	case "apps/v1 Deployment":
		return into(&m.Deployments, document)
	case "v1 Service":
		return into(&m.Services, document)
	case "v1 Secret":
		return into(&m.Secrets, document)
	case "v1 ConfigMap":
		return into(&m.ConfigMaps, document)
	case "v1 ServiceAccount":
		return into(&m.Accounts, document)
	case "v1 Pod":
		return into(&m.Pods, document)
	case "batch/v1 Job":
		return into(&m.Jobs, document)
	case "autoscaling/v2 HorizontalPodAutoscaler":
		return into(&m.Scalers, document)
	case "policy/v1 PodDisruptionBudget":
		return into(&m.Budgets, document)
	case "networking.k8s.io/v1 NetworkPolicy":
		return into(&m.Policies, document)
	case "networking.k8s.io/v1 Ingress":
		return into(&m.Ingresses, document)
	case "gateway.networking.k8s.io/v1 HTTPRoute":
		return into(&m.Routes, document)
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return into(&m.Monitors, document)
	case "monitoring.coreos.com/v1 PrometheusRule":
		return into(&m.Rules, document)
	}
	return fmt.Errorf("%s %s is of no kind that the tests know", kind.APIVersion, kind.Kind)
}

// object is a pointer to T that has a name.
type object[T any] interface {
	*T
	metav1.Object
}

func into[T any, P object[T]](all *map[string]P, document string) error {
	decoded := P(new(T))
	encoded, err := yaml.YAMLToJSONStrict([]byte(document))
	if err != nil {
		return err
	}
	// As the API server does it: names of fields in their exact case.
	if unknown, err := kjson.UnmarshalStrict(encoded, decoded); err != nil || len(unknown) > 0 {
		return errors.Join(append(unknown, err)...)
	}
	if *all == nil {
		*all = map[string]P{}
	}
	if (*all)[decoded.GetName()] != nil {
		return fmt.Errorf("%s appears twice", decoded.GetName())
	}
	(*all)[decoded.GetName()] = decoded
	return nil
}
