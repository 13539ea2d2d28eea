package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/cmd/bench"
)

// Marks around what this program writes in benchmarks.md.
const (
	figuresBegin = "<!-- make bench: begin -->\n"
	figuresEnd   = "<!-- make bench: end -->\n"
)

// write prints the figures and puts them into the document, with the charts.
func (s *suite) write() error {
	text := s.table()
	fmt.Print("\n" + text)
	if s.docs == "" {
		return nil // only to look at
	}
	folder := filepath.Join(s.docs, "benchmarks")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var bars []bench.Bar
	for _, f := range s.figures {
		if f.against > 0 && !f.atMost {
			bars = append(bars, bench.Bar{Name: f.name, Ours: f.ratio * f.against, Against: f.against, OursName: "ours", AgainstName: f.againstName, Target: f.target})
		}
	}
	charts := map[string]chart{}
	var order []string
	add := func(c chart) {
		if _, again := charts[c.file]; !again {
			order = append(order, c.file)
		}
		charts[c.file] = c // of several rounds the last
	}
	if len(bars) > 0 {
		add(chart{"ratios.svg", "Throughput against the yardsticks of the same run", bench.Bars("Throughput against the yardsticks of the same run", bars)})
	}
	for _, c := range s.charts {
		add(c)
	}
	var pictures strings.Builder
	for _, file := range order {
		if err := os.WriteFile(filepath.Join(folder, file), charts[file].svg, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&pictures, "\n![%s](benchmarks/%s)\n", charts[file].title, file)
	}
	text += pictures.String()
	document := filepath.Join(s.docs, "benchmarks.md")
	content, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(content), figuresBegin)
	_, after, ended := strings.Cut(rest, figuresEnd)
	if !found || !ended {
		return fmt.Errorf("%s has no place for figures between %q and %q", document, strings.TrimSpace(figuresBegin), strings.TrimSpace(figuresEnd))
	}
	return os.WriteFile(document, []byte(before+figuresBegin+text+figuresEnd+after), 0o644)
}

func (s *suite) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s on %d cores, load average at the end %s; %d rounds of %s, fsync on, the load generator on the same cores. Medians.\n\n",
		time.Now().UTC().Format("2006-01-02 15:04 MST"), runtime.NumCPU(), loadAverage(), s.rounds, s.length)
	b.WriteString("| | ours | yardstick | ratio | target | |\n| --- | ---: | ---: | ---: | ---: | --- |\n")
	for _, f := range s.figures {
		yardstick, ratio, target, verdict := "", "", "", ""
		if f.against > 0 {
			yardstick, ratio = fmt.Sprintf("%s %s", number(f.against), f.againstName), fmt.Sprintf("%.2f", f.ratio)
		}
		if f.target > 0 {
			target = map[bool]string{true: "≤ ", false: "≥ "}[f.atMost] + fmt.Sprint(f.target)
			verdict = map[bool]string{true: "met", false: "missed"}[f.met()]
		}
		fmt.Fprintf(&b, "| %s | %s %s | %s | %s | %s | %s |\n", f.name, number(f.ours), f.unit, yardstick, ratio, target, verdict)
	}
	for _, note := range s.notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	return b.String()
}

func number(value float64) string {
	switch {
	case value >= 100:
		return fmt.Sprintf("%.0f", value)
	case value >= 1:
		return fmt.Sprintf("%.1f", value)
	default:
		return fmt.Sprintf("%.3f", value)
	}
}

// loadAverage says how busy the machine was, by others too.
func loadAverage() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(content), " ")
	return first
}
