package deploy

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
)

const mebibyte = 1 << 20

// memory is the formula of docs/scaling.md for one role: what its process needs is
// base and, for each variable, its value times so many bytes.
type memory struct {
	base      int64
	variables []share
}

type share struct {
	variable string
	// bytes are what one of the variable's units takes: more than 1 for a byte of a
	// budget, because what is counted is not all that the heap holds for it.
	bytes float64
}

// budgeted is the factor of a byte of a budget.
const budgeted = 1.25

var formula = map[string]memory{
	"publisher": {base: 384 * mebibyte, variables: []share{
		{"XMTP_PUBLISH_MEMORY_BYTES", 1}, // reckoned generously already
		{"XMTP_NOTICE_QUEUE_BYTES", budgeted},
	}},
	"reader": {base: 256 * mebibyte},
	"streamer": {base: 256 * mebibyte, variables: []share{
		{"XMTP_STREAM_NOTICE_BYTES", budgeted},
		{"XMTP_STREAM_BUDGET_BYTES", budgeted},
		{"XMTP_STREAM_REGISTRATION_BYTES", 1}, // counted generously already
	}},
	"gateway": {base: 256 * mebibyte, variables: []share{
		{"XMTP_GATEWAY_BODY_BUDGET_BYTES", budgeted},
		{"XMTP_GATEWAY_ANSWER_BUDGET_BYTES", budgeted},
		{"XMTP_GATEWAY_MAX_CONNECTIONS", 25_000},
		{"XMTP_GATEWAY_MAX_CALLS", 25_000},
		{"XMTP_GATEWAY_MAX_STREAMS", 20_000},
	}},
}

// held names what one request, page, frame or call may have: it is taken from a
// budget, or a handful of them is in the base.
var held = map[string]bool{
	"XMTP_MAX_ENVELOPE_BYTES": true, "XMTP_MAX_REQUEST_BYTES": true, "XMTP_MAX_RESPONSE_BYTES": true, "XMTP_GATEWAY_MAX_HEADER_BYTES": true,
	"XMTP_PUBLISH_GROUP_BYTES": true, "XMTP_NOTICE_INLINE_BYTES": true,
	"XMTP_STREAM_OUTPUT_BYTES": true, "XMTP_STREAM_FRAME_BYTES": true, "XMTP_STREAM_PAGE_BYTES": true,
	"XMTP_MAX_CONCURRENT_STREAMS": true, "XMTP_DB_MAX_CONNS": true, "XMTP_CHAIN_MAX_CALLS": true,
	// A streamer publishes nothing.
	"streamer XMTP_NOTICE_QUEUE_BYTES": true,
}

// counted are the variables that bound memory, by the ends of their names.
var counted = regexp.MustCompile(`_(BYTES|CONNECTIONS|CONNS|CALLS|STREAMS)$`)

func (m memory) has(variable string) bool {
	for _, s := range m.variables {
		if s.variable == variable {
			return true
		}
	}
	return false
}

// A new budget has to be in the formula, or the limits do not hold it.
func TestTheFormulaKnowsEveryVariableThatBoundsMemory(t *testing.T) {
	for _, role := range roleNames {
		params, err := programs[role].variables()
		require.NoError(t, err)
		read := map[string]bool{}
		for _, param := range params {
			read[param.Key] = true
			if counted.MatchString(param.Key) && !held[param.Key] && !held[role+" "+param.Key] {
				require.True(t, formula[role].has(param.Key), "the formula for the memory of the %s does not know %s", role, param.Key)
			}
		}
		for _, s := range formula[role].variables {
			require.True(t, read[s.variable], "the %s does not read %s, which the formula for its memory has", role, s.variable)
		}
	}
}

// needed is what the formula says for a deployment.
func (m memory) needed(t *testing.T, role string, deployment *appsv1.Deployment) int64 {
	t.Helper()
	sum := float64(m.base)
	for _, s := range m.variables {
		value, given := plain(deployment)[s.variable]
		if !given {
			value = defaultOf(t, role, s.variable)
		}
		size, err := strconv.ParseInt(value, 10, 64)
		require.NoError(t, err)
		sum += s.bytes * float64(size)
	}
	return int64(sum)
}

func TestTheMemoryLimitHoldsTheBudgets(t *testing.T) {
	each(t, func(t *testing.T, m *Manifests) {
		for role, memory := range formula {
			deployment := m.Deployments[name(role)]
			limit := deployment.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value()
			needed := memory.needed(t, role, deployment)
			require.GreaterOrEqual(t, limit/mebibyte, needed/mebibyte, "MiB of a %s", role)
			require.Equal(t, strconv.FormatInt(limit*9/10, 10), plain(deployment)["GOMEMLIMIT"], "Go collects before the limit of the %s is reached", role)
		}
	})
}

func TestComposeLimitsNoMemory(t *testing.T) {
	for _, role := range roleNames {
		service := compose(t).Services[role]
		require.Zero(t, service.MemLimit, "a limit of the %s has to hold its budgets: compare it with the formula", role)
		require.Nil(t, service.Deploy)
	}
}

// The document's table is the formula.
func TestTheFormulaIsDocumented(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(repository, "docs/scaling.md"))
	require.NoError(t, err)
	for _, role := range roleNames {
		parts := []string{fmt.Sprintf("%d MiB", formula[role].base/mebibyte)}
		for _, s := range formula[role].variables {
			part := "`" + s.variable + "`"
			if s.bytes != 1 {
				part = fmt.Sprintf("%v × %s", s.bytes, part)
			}
			parts = append(parts, part)
		}
		require.Contains(t, string(content), fmt.Sprintf("| %s | %s |\n", role, strings.Join(parts, " + ")))
	}
}

// pods is what the tests of tests/robustness start: the roles as the chart would,
// which they cannot render themselves.
type pods map[string]pod

type pod struct {
	LimitBytes  int64
	Environment map[string]string
}

var write = flag.Bool("write", false, "write the pods for tests/robustness")

// TestThePodsOfTheRobustnessTestsAreTheCharts compares, or writes with -write.
func TestThePodsOfTheRobustnessTestsAreTheCharts(t *testing.T) {
	of := func(installation string) pods {
		all := pods{}
		m := rendered(t, installation)
		for _, role := range roleNames {
			container := m.Deployments[name(role)].Spec.Template.Spec.Containers[0]
			all[role] = pod{container.Resources.Limits.Memory().Value(), plain(m.Deployments[name(role)])}
			for variable, value := range all[role].Environment {
				if value == "" { // from a Secret
					delete(all[role].Environment, variable)
				}
			}
		}
		return all
	}
	encoded, err := json.MarshalIndent(map[string]pods{"default": of("least"), "small": of("small")}, "", "  ")
	require.NoError(t, err)
	file := filepath.Join(repository, "tests/robustness/siege/pods.json")
	if *write {
		require.NoError(t, os.WriteFile(file, append(encoded, '\n'), 0o644))
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(encoded)+"\n", string(content), "write it anew: GOWORK=off go test ./tests/deploy -run ThePods -write")
}
