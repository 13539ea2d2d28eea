// Package dashboards decodes the dashboards with the types that Grafana
// publishes for them. It is a module of its own, for the sake of those alone.
package dashboards

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func decode(text []byte) (*dashboard.Dashboard, error) {
	// What the dashboards are made of; anything else does not decode strictly.
	cog.NewRuntime().RegisterPanelcfgVariant(timeseries.VariantConfig())
	cog.NewRuntime().RegisterPanelcfgVariant(stat.VariantConfig())
	cog.NewRuntime().RegisterDataqueryVariant(prometheus.VariantConfig())
	err := (&dashboard.Dashboard{}).UnmarshalJSONStrict(text)
	if failures := (cog.BuildErrors)(nil); errors.As(err, &failures) && len(failures) == 0 {
		err = nil // these types return an empty list of errors for none, and then keep no panels
	}
	decoded := &dashboard.Dashboard{}
	return decoded, errors.Join(err, json.Unmarshal(text, decoded))
}

func TestDashboardsDecodeStrictly(t *testing.T) {
	paths, err := filepath.Glob("../../deploy/k8s/files/dashboards/*.json")
	if err != nil || len(paths) != 5 {
		t.Fatalf("found %d dashboards, expected 5: %v", len(paths), err)
	}
	titles := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := decode(text)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if decoded.Title == nil || titles[*decoded.Title] {
			t.Errorf("%s has no title of its own", path)
			continue
		}
		titles[*decoded.Title] = true
		checkPanels(t, path, decoded)
		if _, err := decode([]byte(strings.Replace(string(text), `"drawStyle"`, `"drawStyel"`, 1))); err == nil {
			t.Errorf("%s: a field that does not exist was accepted", path)
		}
	}
}

func checkPanels(t *testing.T, path string, decoded *dashboard.Dashboard) {
	ids := map[uint32]bool{}
	for _, either := range decoded.Panels {
		panel := either.Panel
		if panel == nil {
			continue // a row
		}
		if panel.Id == nil || ids[*panel.Id] {
			t.Errorf("%s: panel %q has no id of its own", path, *panel.Title)
		} else {
			ids[*panel.Id] = true
		}
		if len(panel.Targets) == 0 {
			t.Errorf("%s: panel %q asks nothing", path, *panel.Title)
		}
		for _, target := range panel.Targets {
			if query, ok := target.(*prometheus.Dataquery); !ok || query.Expr == "" {
				if value, ok := target.(prometheus.Dataquery); !ok || value.Expr == "" {
					t.Errorf("%s: panel %q has a query that is not for Prometheus: %T", path, *panel.Title, target)
				}
			}
		}
	}
	if len(ids) == 0 {
		t.Errorf("%s has no panels", path)
	}
}
