package telemetry_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// parse reads a query as Prometheus does, after Grafana put its interval in.
func parse(t *testing.T, query string) parser.Expr {
	t.Helper()
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(query, "$__rate_interval", "1m"))
	require.NoError(t, err, query)
	return expression
}

// aggregated are the endings of a histogram's series.
var aggregated = regexp.MustCompile(`_(bucket|sum|count)$`)

// describe finds a series in the catalogue. The metrics of the process and of Go
// are not in it.
func describe(series string) (telemetry.Description, bool) {
	name := series
	i := slices.IndexFunc(telemetry.Catalogue(), func(d telemetry.Description) bool {
		return d.Name == series || d.Type == "histogram" && d.Name == aggregated.ReplaceAllString(series, "")
	})
	if i < 0 {
		return telemetry.Description{Name: name}, strings.HasPrefix(series, "process_") || strings.HasPrefix(series, "go_")
	}
	return telemetry.Catalogue()[i], true
}

// labelsOf are those that a series has once Prometheus has stored it.
func labelsOf(series string, d telemetry.Description) []string {
	names := []string{"job", "instance"}
	if len(d.Roles) > 0 {
		names = append(names, "role")
	}
	for _, l := range d.Labels {
		names = append(names, l.Name)
	}
	if strings.HasSuffix(series, "_bucket") {
		names = append(names, "le")
	}
	return names
}

// queriesUseWhatExists: a query that names a metric, a label or a label's value
// which is never there shows nothing, and an alert on it never fires.
func queriesUseWhatExists(t *testing.T, seen *outcome) {
	for where, query := range expressions(t) {
		selectors := 0
		parser.Inspect(parse(t, query), func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.VectorSelector:
				selectors++
				d, known := describe(n.Name)
				assert.True(t, known, "%s: nothing records %s", where, n.Name)
				assert.Regexp(t, `(?m)^`+n.Name+`[{ ]`, seen.scraped, "%s uses %s", where, n.Name)
				for _, m := range n.LabelMatchers {
					checkMatcher(t, where, n.Name, d, m, seen)
				}
			case *parser.AggregateExpr:
				for _, grouped := range n.Grouping {
					for _, available := range labelsBelow(n) {
						assert.Contains(t, available, grouped, "%s groups by a label that is not there", where)
					}
				}
			}
			return nil
		})
		assert.Positive(t, selectors, where)
	}
}

// labelsBelow are the labels of each series that an aggregation reads.
func labelsBelow(n *parser.AggregateExpr) [][]string {
	var all [][]string
	parser.Inspect(n.Expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			d, _ := describe(selector.Name)
			all = append(all, labelsOf(selector.Name, d))
		}
		return nil
	})
	return all
}

// checkMatcher looks at each value that a matcher names, such as both of
// {reason=~"unavailable|internal"}.
func checkMatcher(t *testing.T, where, series string, d telemetry.Description, m *labels.Matcher, seen *outcome) {
	t.Helper()
	if m.Name == "__name__" {
		return
	}
	assert.Contains(t, labelsOf(series, d), m.Name, "%s: %s has no such label", where, series)
	values := []string{m.Value}
	if m.Type == labels.MatchRegexp || m.Type == labels.MatchNotRegexp {
		values = strings.Split(m.Value, "|")
	}
	var possible []string
	switch m.Name {
	case "role":
		possible = d.Roles
	case "grpc_code":
		for code := codes.OK; code <= codes.Unauthenticated; code++ {
			possible = append(possible, code.String())
		}
	default:
		for _, l := range d.Labels {
			if l.Name == m.Name {
				possible = l.Values
			}
		}
	}
	for _, value := range values {
		if len(possible) > 0 {
			assert.Contains(t, possible, value, "%s: %s of %s", where, m.Name, series)
			continue
		}
		assert.Regexp(t, m.Name+`="`+value+`"`, seen.scraped, "%s: %s of %s", where, m.Name, series)
	}
}

// TestAnAlertSpeaksOfLabelsThatItHas: a label that the expression dropped is an
// empty place in the message.
func TestAnAlertSpeaksOfLabelsThatItHas(t *testing.T) {
	used := regexp.MustCompile(`\$labels\.(\w+)`)
	mentions := 0
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			var kept []string
			parser.Inspect(parse(t, rule.Expr), func(node parser.Node, path []parser.Node) error {
				switch n := node.(type) {
				case *parser.AggregateExpr:
					kept = append(kept, n.Grouping...)
				case *parser.VectorSelector:
					if !slices.ContainsFunc(path, func(above parser.Node) bool { _, ok := above.(*parser.AggregateExpr); return ok }) {
						d, _ := describe(n.Name)
						kept = append(kept, labelsOf(n.Name, d)...)
					}
				}
				return nil
			})
			for _, text := range rule.Annotations {
				for _, name := range used.FindAllStringSubmatch(text, -1) {
					mentions++
					assert.Contains(t, kept, name[1], rule.Alert)
				}
			}
		}
	}
	require.Greater(t, mentions, 5)
}

// TestDocumentsNameMetricsThatExist looks at names in the text, too.
func TestDocumentsNameMetricsThatExist(t *testing.T) {
	named := regexp.MustCompile(`\b(xmtp|grpc_server)_[a-z0-9_]*[a-z0-9]\b`)
	found := 0
	for page, text := range documents(t) {
		for _, name := range named.FindAllString(text, -1) {
			found++
			_, known := describe(name)
			assert.True(t, known, "%s names %s, which nothing records", page, name)
		}
	}
	require.Greater(t, found, 50)
}
