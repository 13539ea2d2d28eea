package telemetry_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const files = "../../deploy/k8s/files/"

// board is the part of a dashboard that asks for metrics. The dashboards module
// decodes all of it.
type board struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

// ruleFile is a file of alert rules.
type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			For         string            `yaml:"for"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

func readRules(t *testing.T) ruleFile {
	t.Helper()
	text, err := os.ReadFile(files + "rules/alerts.yaml")
	require.NoError(t, err)
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var rules ruleFile
	require.NoError(t, decoder.Decode(&rules))
	return rules
}

// promqlBlock is queries in a document, one a line.
var promqlBlock = regexp.MustCompile("(?ms)^```promql\n(.*?)^```$")

// documents are the pages for operators, by their path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/runbooks/*.md"} {
		paths, err := filepath.Glob("../../" + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, paths, pattern)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			pages[strings.TrimPrefix(path, "../../")] = string(text)
		}
	}
	return pages
}

// expressions are all queries of dashboards, alerts and documents, by where they
// are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	paths, err := filepath.Glob(files + "dashboards/*.json")
	require.NoError(t, err)
	require.Len(t, paths, 5)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var b board
		require.NoError(t, json.Unmarshal(text, &b))
		for _, panel := range b.Panels {
			for _, target := range panel.Targets {
				found[filepath.Base(path)+", "+panel.Title+": "+target.Expr] = target.Expr
			}
		}
	}
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			found["alert "+rule.Alert] = rule.Expr
		}
	}
	for page, text := range documents(t) {
		for _, block := range promqlBlock.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(block[1]) {
				found[page+": "+line] = line
			}
		}
	}
	require.Greater(t, len(found), 90)
	return found
}

func TestPrometheusAcceptsEveryQuery(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("groups:\n- name: all\n  rules:\n")
	for _, expression := range expressions(t) {
		expression = strings.ReplaceAll(expression, "$__rate_interval", "1m")
		encoded, err := json.Marshal(expression)
		require.NoError(t, err)
		rules.WriteString("  - record: checked\n    expr: " + string(encoded) + "\n    labels: {n: " + `"` + strings.Repeat("i", rules.Len()%97) + `"` + "}\n")
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(rules.String()), 0o600))
	for _, checked := range []string{path, files + "rules/alerts.yaml"} {
		out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", "--lint=none", checked).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	out, err := exec.CommandContext(t.Context(), "promtool", "check", "config", "--syntax-only", "../../deploy/dev/prometheus.yaml").CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestAlertsFireOnWhatIsMissing has Prometheus evaluate the rules on series that
// are not there, which no run of a whole backend has.
func TestAlertsFireOnWhatIsMissing(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", "testdata/missing.yaml").CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestEveryAlertHasARunbook(t *testing.T) {
	const prefix = "https://github.com/xmtp-selfhosted/backend/blob/main/"
	for _, group := range readRules(t).Groups {
		require.Len(t, group.Rules, 14)
		for _, rule := range group.Rules {
			require.Contains(t, []string{"critical", "warning"}, rule.Labels["severity"], rule.Alert)
			require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
			require.NotEmpty(t, rule.Annotations["description"], rule.Alert)
			link := rule.Annotations["runbook_url"]
			require.Equal(t, prefix+"docs/runbooks/"+rule.Alert+".md", link)
			_, err := os.Stat("../../" + strings.TrimPrefix(link, prefix))
			assert.NoError(t, err, rule.Alert)
		}
	}
}
