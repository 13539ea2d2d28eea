// Command suite measures the whole backend against yardsticks of the same run and
// machine, in turns, and writes docs/benchmarks.md with its charts. `make bench`
// starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/pgbench"
)

// options of a run.
type options struct {
	devstack string
	docs     string
	sections string
	rounds   int
	length   time.Duration
	flatRows int
	serve    bool
	size     int
}

func main() {
	var o options
	flag.StringVar(&o.devstack, "devstack", "bin/devstack", "the program of the dev stack")
	flag.StringVar(&o.docs, "docs", "docs", "folder of benchmarks.md, its charts go to benchmarks/ below it; empty: only print")
	flag.StringVar(&o.sections, "sections", strings.Join(sectionNames(), ","), "what is measured")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of yardstick and backend in turns")
	flag.DurationVar(&o.length, "length", 8*time.Second, "length of each turn")
	flag.IntVar(&o.flatRows, "flat-rows", 10_000_000, "envelopes stored for the comparison with a hundredth of them")
	flag.BoolVar(&o.serve, "serve-bytes", false, "be the bare stream server (the program starts itself with this)")
	flag.IntVar(&o.size, "serve-size", 1024, "bytes of its frames")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, o options) error {
	if o.serve {
		return serveBytes(ctx, o.size)
	}
	return run(ctx, o)
}

// suite is one run.
type suite struct {
	options
	stack   *devStack
	pgbench *pgbench.Pgbench
	figures []figure
	charts  []chart
	notes   []string
}

// section is a part of the suite that can be run alone.
type section struct {
	name    string
	measure func(context.Context, *suite) error
}

var sections = []section{
	{"publish", measurePublish},
	{"single", measureSingle},
	{"latency", measureLatency},
	{"query", measureQuery},
	{"catchup", measureCatchUp},
	{"fanout", measureFanOut},
	{"mixed", measureMixed},
	{"flat", measureFlat},
	{"live", measureLive},
	{"idle", measureIdle},
	{"neighbours", measureNeighbours},
	{"sweep", measureSweep},
}

func sectionNames() []string {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

func run(ctx context.Context, o options) (err error) {
	wanted := strings.Split(o.sections, ",")
	for _, name := range wanted {
		if !slices.Contains(sectionNames(), name) {
			return fmt.Errorf("there is no section %q, expected some of %s", name, strings.Join(sectionNames(), ","))
		}
	}
	s := &suite{options: o}
	s.stack, err = startDevStack(ctx, o.devstack)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stack.stop()) }()
	s.pgbench, err = newPgbench(ctx, s.stack)
	if err != nil {
		return err
	}
	for _, section := range sections {
		if !slices.Contains(wanted, section.name) {
			continue
		}
		fmt.Printf("\n%s\n", section.name)
		if err := section.measure(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", section.name, err)
		}
	}
	return s.write()
}

// median of values, which it sorts.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
