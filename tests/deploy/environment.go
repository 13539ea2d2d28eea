package deploy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Environment is what the container sees. What comes from a Secret that the chart
// does not make is taken from given, by Secret and key.
func (m *Manifests) Environment(container corev1.Container, given map[string]map[string]string) (map[string]string, error) {
	environment := map[string]string{}
	for _, v := range container.Env {
		if _, twice := environment[v.Name]; twice {
			return nil, fmt.Errorf("%s is set twice in container %s", v.Name, container.Name)
		}
		if v.ValueFrom == nil {
			environment[v.Name] = v.Value
			continue
		}
		from := v.ValueFrom.SecretKeyRef
		value, found := given[from.Name][from.Key]
		if secret := m.Secrets[from.Name]; secret != nil {
			value, found = secret.StringData[from.Key]
		}
		if !found {
			return nil, fmt.Errorf("%s comes from key %s of Secret %s, which does not exist", v.Name, from.Key, from.Name)
		}
		environment[v.Name] = value
	}
	return environment, nil
}
