// Package siege attacks the backend as it would be installed: each role is a
// process with the environment that the chart gives it, and is killed when it is
// larger than its pod may be. Beside each attack a probe is an ordinary client.
package siege

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// Pod is how the chart runs a role.
type Pod struct {
	// LimitBytes is the memory limit, above which Kubernetes kills.
	LimitBytes int64
	// Environment is what the role sees, but for what comes from Secrets.
	Environment map[string]string
}

//go:embed pods.json
var rendered []byte

// Pods are the roles as an installation of the chart has them: "default" or
// "small". They are rendered by tests/deploy, which keeps them fresh.
func Pods(installation string) (map[string]Pod, error) {
	var all map[string]map[string]Pod
	if err := json.Unmarshal(rendered, &all); err != nil {
		return nil, err
	}
	if all[installation] == nil {
		return nil, fmt.Errorf("there is no installation named %q", installation)
	}
	return all[installation], nil
}
