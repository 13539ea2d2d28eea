package deploy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The kinds that others define, as far as the chart uses them.
type (
	// HTTPRoute is a route of the Gateway API.
	HTTPRoute struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			ParentRefs []struct {
				Name        string `json:"name"`
				Namespace   string `json:"namespace,omitempty"`
				SectionName string `json:"sectionName,omitempty"`
			} `json:"parentRefs"`
			Hostnames []string `json:"hostnames"`
			Rules     []struct {
				Matches []struct {
					Path struct {
						Type  string `json:"type"`
						Value string `json:"value"`
					} `json:"path"`
				} `json:"matches"`
				Timeouts struct {
					Request        string `json:"request"`
					BackendRequest string `json:"backendRequest"`
				} `json:"timeouts"`
				BackendRefs []struct {
					Name string `json:"name"`
					Port int32  `json:"port"`
				} `json:"backendRefs"`
			} `json:"rules"`
		} `json:"spec"`
	}

	// ServiceMonitor tells the Prometheus operator what to scrape.
	ServiceMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port          string              `json:"port,omitempty"`
				TargetPort    *intstr.IntOrString `json:"targetPort,omitempty"`
				Interval      string              `json:"interval"`
				Path          string              `json:"path"`
				HonorLabels   bool                `json:"honorLabels,omitempty"`
				ScrapeTimeout string              `json:"scrapeTimeout,omitempty"`
			} `json:"endpoints"`
			TargetLabels []string `json:"targetLabels,omitempty"`
		} `json:"spec"`
	}

	// PrometheusRule is alert rules for the Prometheus operator.
	PrometheusRule struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Groups []map[string]any `json:"groups"`
		} `json:"spec"`
	}
)
