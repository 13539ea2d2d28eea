package siege

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// answeredAtLeast is the part of an ordinary client's calls that an attack must not
// hinder.
const answeredAtLeast = 0.99

// answeredMeanwhile is the part that has to be answered while the attack goes on,
// not only when it is over. A client that is served at all has nearly all of them.
const answeredMeanwhile = 0.5

// Ratio is how many times slower the slowest percent of the probe's calls became.
func (r *Result) Ratio() float64 {
	return float64(r.During.Percentile(99)) / float64(max(r.Quiet.Percentile(99), time.Microsecond))
}

// Problems are what must not be. Latencies are judged only where nothing else
// runs on the machine: see Slow.
func (r *Result) Problems() []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, name := range r.Killed {
		add("the %s had more than %d MiB resident and was killed", name, r.Limit[name]>>20)
	}
	if share := r.During.Share(); share < answeredAtLeast {
		add("%d of %d probes were answered; the others: %v", r.During.Answered(), r.During.Asked(), r.During.failures)
	}
	if n := r.During.meanwhile; float64(n) < answeredMeanwhile*float64(r.During.asked) {
		add("%d of %d probes were answered before the attack was over", n, r.During.asked)
	}
	if r.During.streams > 0 && len(r.Killed) == 0 {
		add("the stream of an ordinary client ended %d times", r.During.streams)
	}
	if len(r.NotBack) > 0 {
		add("after %s there is still: %s", r.Back.Round(time.Second), strings.Join(r.NotBack, ", "))
	}
	if r.Proxied || len(r.Killed) > 0 {
		return all // a proxy answers by itself at times, and metrics die with their process
	}
	told := map[string]int{}
	for _, outcome := range r.Outcomes {
		for code, n := range outcome.Told {
			told[code] += n
		}
	}
	for _, code := range slices.Sorted(maps.Keys(told)) {
		if code != "OK" && r.Refused[code] < float64(told[code]) {
			add("attackers were told %s %d times, the gateway's metrics know of %.0f", code, told[code], r.Refused[code])
		}
	}
	return all
}

// Slow says that the attack slowed others down more than it may, or nothing.
func (r *Result) Slow(atMost float64) []string {
	if ratio := r.Ratio(); ratio > atMost {
		return []string{fmt.Sprintf("the 99th percentile of probes became %.1f times what it is without the attack, at most %.0f is allowed", ratio, atMost)}
	}
	return nil
}

// String is the result in some lines, for the log of a test.
func (r *Result) String() string {
	var b strings.Builder
	_ = Table(&b, r) // to memory
	for _, outcome := range r.Outcomes {
		fmt.Fprintf(&b, "attackers: %+v\n", outcome)
	}
	return b.String()
}

// columns of the table of results.
var columns = []string{"attack", "faults", "through", "probes answered", "p50 quiet", "p50", "p99 quiet", "p99", "peak gateway", "publisher", "reader", "streamer", "refused by the gateway", "given back after"}

// Table writes results as a table of a document.
func Table(w io.Writer, results ...*Result) error {
	var b strings.Builder
	b.WriteString("| " + strings.Join(columns, " | ") + " |\n|" + strings.Repeat(" --- |", len(columns)) + "\n")
	for _, r := range results {
		through := "gateway"
		if r.Proxied {
			through = "nginx"
		}
		cells := []string{r.Attack, r.Faults, through, fmt.Sprintf("%d of %d", r.During.Answered(), r.During.Asked())}
		for _, percent := range []int{50, 99} {
			cells = append(cells, milliseconds(r.Quiet.Percentile(percent)), milliseconds(r.During.Percentile(percent)))
		}
		for _, name := range []string{"gateway", "publisher", "reader", "streamer"} {
			cell := fmt.Sprintf("%d of %d MiB", r.Peak[name]>>20, r.Limit[name]>>20)
			if slices.Contains(r.Killed, name) {
				cell += ", killed"
			}
			cells = append(cells, cell)
		}
		b.WriteString("| " + strings.Join(append(cells, r.refused(), r.back()), " | ") + " |\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func (r *Result) refused() string {
	var parts []string
	for _, code := range slices.Sorted(maps.Keys(r.Refused)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", code, r.Refused[code]))
	}
	if parts == nil {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func (r *Result) back() string {
	switch {
	case len(r.Killed) > 0:
		return "-"
	case len(r.NotBack) > 0:
		return "not within " + backWithin.String()
	}
	return fmt.Sprintf("%.1f s", r.Back.Seconds())
}
