// Command chaos runs a fault campaign against real processes of the backend and
// writes its report. `make chaos` starts it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/xmtp-selfhosted/backend/tests/robustness"
	"github.com/xmtp-selfhosted/backend/tests/robustness/report"
)

func main() {
	options := robustness.Options{Out: os.Stdout}
	var only, document string
	flag.Uint64Var(&options.Seed, "seed", uint64(time.Now().Unix()), "what happens, and in which order, follows from it")
	flag.DurationVar(&options.Duration, "duration", 30*time.Minute, "how long faults happen")
	flag.StringVar(&only, "only", "", "parts that break, separated by commas, such as \"NATS,streamer 1\"; empty is all")
	flag.StringVar(&options.Keep, "keep", "chaos-logs", "folder for the logs of a run that failed")
	flag.StringVar(&document, "report", "", "document whose section on the last campaign is replaced")
	flag.Parse()
	if only != "" {
		options.Only = strings.Split(only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, options, document); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, options robustness.Options, document string) error {
	r, err := robustness.Run(ctx, options)
	if err != nil {
		return err
	}
	var text strings.Builder
	if err := r.Markdown(&text); err != nil {
		return err
	}
	fmt.Println("\n" + text.String())
	if document != "" {
		if err := report.ReplaceSection(document, "campaign", text.String()); err != nil {
			return err
		}
	}
	if !r.Passed() {
		return fmt.Errorf("%d findings; the same faults again: -seed %d -duration %s", len(r.Findings()), options.Seed, options.Duration)
	}
	return nil
}
