package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xmtp-selfhosted/backend/cmd/bench"
)

func (a *app) benchCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "bench",
		Short: "Put load on the backend and measure it",
		Long: `Bench publishes, reads or follows as fast as answers come, or at a rate, shows each
second, and ends with throughput and latencies. It stores what it sends: use it on a
backend made for tests.`,
	}
	for _, w := range bench.Workloads {
		command.AddCommand(a.workloadCommand(w.Name, w.About))
	}
	return command
}

func (a *app) workloadCommand(workload bench.Workload, about string) *cobra.Command {
	config, chart := bench.Default(workload), ""
	command := &cobra.Command{
		Use:   string(workload),
		Short: strings.ToUpper(about[:1]) + about[1:],
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config.Endpoint, config.TLS, config.TLSServerName = a.endpoint, a.tls, a.tlsServerName
			result, err := bench.Run(cmd.Context(), config, showProgress(cmd.ErrOrStderr()))
			if err != nil {
				return err
			}
			if chart != "" {
				if err := os.WriteFile(chart, result.Chart(fmt.Sprintf("%s, %d callers", workload, config.Concurrency)), 0o644); err != nil {
					return err
				}
			}
			if a.json {
				return json.NewEncoder(a.out).Encode(result)
			}
			return printResult(a.out, result)
		},
	}
	flags := command.Flags()
	flags.DurationVar(&config.Warmup, "warmup", config.Warmup, "time before the measurement")
	flags.DurationVar(&config.Duration, "duration", config.Duration, "length of the measurement")
	flags.IntVar(&config.Concurrency, "concurrency", config.Concurrency, "callers that each wait for their answer")
	flags.IntVar(&config.Connections, "connections", config.Connections, "connections that callers and streams share")
	flags.IntVar(&config.Size, "size", config.Size, "bytes of a message's ciphertext")
	flags.IntVar(&config.PerRequest, "per-request", config.PerRequest, "envelopes of a publish request")
	flags.IntVar(&config.Topics, "topics", config.Topics, "topics; with many-topics those of one stream")
	flags.Float64Var(&config.Skew, "skew", config.Skew, "how much busier some topics are: a Zipf exponent above 1, 0 is even")
	flags.IntVar(&config.Streams, "streams", config.Streams, "open streams")
	flags.Float64Var(&config.Rate, "rate", config.Rate, "calls a second over all callers, 0 is as fast as answers come")
	flags.IntVar(&config.Rows, "rows", config.Rows, "envelopes stored on each topic before reading")
	flags.IntVar(&config.Page, "page", config.Page, "limit of a query")
	flags.Uint64Var(&config.Seed, "seed", config.Seed, "what is drawn follows from it")
	flags.StringVar(&chart, "chart", "", "SVG file for throughput and latency over time")
	return command
}

// showProgress prints a line a second.
func showProgress(out io.Writer) func(bench.Point) {
	return func(p bench.Point) {
		if !p.Counted {
			fmt.Fprintf(out, "        %s\n", p.What)
			return
		}
		fmt.Fprintf(out, "%5.0f s  %8.0f calls/s  %9.0f envelopes/s  median %8.2f ms  99%% %8.2f ms  %d errors\n",
			p.At.Seconds(), p.Calls, p.Envelopes, p.Latency.P50, p.Latency.P99, p.Errors)
	}
}

func printResult(out io.Writer, r *bench.Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, %.0f s, %d callers\n\n", r.Config.Workload, r.Duration.Round(time.Second).Seconds(), r.Config.Concurrency)
	fmt.Fprintf(&b, "  calls      %10d  %10.0f/s\n  envelopes  %10d  %10.0f/s\n  errors     %10d  %s\n\n",
		r.Calls, r.CallsPerSecond, r.Envelopes, r.EnvelopesPerSecond, r.Errors, r.FirstError)
	fmt.Fprintf(&b, "  latency in ms        mean    median       90%%       99%%     99.9%%   slowest\n")
	for _, line := range []struct {
		name    string
		latency bench.Latency
	}{{"calls", r.Call}, {"deliveries", r.Delivery}} {
		if l := line.latency; l.Count > 0 {
			fmt.Fprintf(&b, "  %-14s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", line.name, l.Mean, l.P50, l.P90, l.P99, l.P999, l.Max)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
