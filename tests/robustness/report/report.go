// Package report says what a fault campaign did and found.
package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
	"github.com/xmtp-selfhosted/backend/tests/robustness/fault"
	"github.com/xmtp-selfhosted/backend/tests/robustness/traffic"
)

// Report is the outcome of one campaign.
type Report struct {
	Seed     uint64
	Duration time.Duration
	Begun    time.Time
	Plan     []fault.Fault
	Counts   traffic.Counts
	// Rows and Topics are those of the final table, Lost the envelopes that clients
	// saw and failovers lost.
	Rows, Topics, Lost int
	// Settled is how long after the last fault every stream had everything.
	Settled    time.Duration
	Violations []check.Violation
	// Surprises are answers that no fault explains; Problems are what kept the
	// campaign from its end, or a process that ended by itself.
	Surprises, Problems []string
}

// Passed says that every promise was kept and nothing unexplained happened.
func (r *Report) Passed() bool {
	return len(r.Violations)+len(r.Surprises)+len(r.Problems) == 0
}

// Findings are all that went wrong, one a line.
func (r *Report) Findings() []string {
	var all []string
	for _, v := range r.Violations {
		all = append(all, v.String())
	}
	for _, s := range r.Surprises {
		all = append(all, "unexplained: "+s)
	}
	return append(all, r.Problems...)
}

// Markdown writes the report as a section of a document.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Seed %d, %s of faults, begun %s.\n\n", r.Seed, r.Duration, r.Begun.UTC().Format("2006-01-02 15:04 MST"))
	b.WriteString("| | |\n| --- | ---: |\n")
	for _, line := range []struct {
		name  string
		value any
	}{
		{"faults", len(r.Plan)},
		{"publish requests sent", r.Counts.Requests},
		{"of these acknowledged", r.Counts.Acknowledged},
		{"envelopes acknowledged, copies included", r.Counts.Envelopes},
		{"broken requests refused", r.Counts.Refused},
		{"rows at the end", r.Rows},
		{"topics at the end", r.Topics},
		{"envelopes that failovers lost", r.Lost},
		{"inboxes replayed, looked up and extended", r.Counts.Inboxes},
		{"query pages compared", r.Counts.Pages},
		{"streams opened", r.Counts.StreamsOpened},
		{"envelopes delivered and compared", r.Counts.Delivered},
		{"longest time without an acknowledged publish", r.Counts.LongestPause.Round(time.Millisecond)},
		{"which ended, after the begin of the traffic", r.Counts.LongestPauseEnd.Round(time.Second)},
		{"all streams complete after the last fault", r.Settled.Round(time.Millisecond)},
		{"broken promises", len(r.Violations)},
		{"unexplained answers", len(r.Surprises)},
		{"other problems", len(r.Problems)},
	} {
		fmt.Fprintf(&b, "| %s | %v |\n", line.name, line.value)
	}
	b.WriteString("\n| part | faults |\n| --- | --- |\n")
	byTarget := map[string]map[string]int{}
	for _, f := range r.Plan {
		if byTarget[f.Target] == nil {
			byTarget[f.Target] = map[string]int{}
		}
		byTarget[f.Target][f.Kind]++
	}
	for _, name := range slices.Sorted(maps.Keys(byTarget)) {
		fmt.Fprintf(&b, "| %s | %s |\n", name, counted(byTarget[name]))
	}
	fmt.Fprintf(&b, "\nCalls that failed under faults, and were made again by their clients: %s.\n", orNone(counted(r.Counts.Codes)))
	if findings := r.Findings(); len(findings) > 0 {
		b.WriteString("\nFindings:\n\n")
		for _, finding := range findings {
			fmt.Fprintf(&b, "- %s\n", finding)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func counted(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
