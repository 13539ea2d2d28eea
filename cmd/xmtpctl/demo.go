package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/cmd/replay"
)

// deliveryTimeout is far above what any delivery takes on a healthy backend.
const deliveryTimeout = 30 * time.Second

func (a *app) demoCommand() *cobra.Command {
	messages := 200
	command := &cobra.Command{
		Use:   "demo",
		Short: "Send a recorded client session through the backend and check all that comes out",
		Long: `Demo publishes what real clients published, in their order, while it follows every
topic on a stream. Key packages that have expired meanwhile and updates that need a
chain are replaced by fresh ones. It fails when an envelope is missing, altered, out
of order or delivered twice.`,
		Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, connection *grpc.ClientConn, _ []string) error {
			now := time.Now()
			plan, err := replay.Presentable(now, uint64(now.UnixNano()), messages)
			if err != nil {
				return err
			}
			if !a.json {
				fmt.Fprintf(a.out, "Replaying %d requests through %s; %d payloads are fresh stand-ins for recorded ones.\n",
					len(plan.Requests), a.endpoint, plan.Substituted)
			}
			report, err := replay.Run(cmd.Context(), connection, plan, replay.Options{
				DeliveryTimeout: deliveryTimeout,
				Progress: func(done, total int) {
					if done%100 == 0 || done == total {
						fmt.Fprintf(cmd.ErrOrStderr(), "  %d of %d requests\n", done, total)
					}
				},
			})
			if err != nil {
				return err
			}
			return a.report(report)
		}),
	}
	command.Flags().IntVar(&messages, "messages", messages, "fresh group messages to send after the recorded session")
	return command
}

func (a *app) report(r *replay.Report) error {
	if a.json {
		_, err := fmt.Fprintf(a.out, `{"requests":%d,"published":%d,"stored":%d,"duplicates":%d,"topics":%d,"delivered":%d,"live":%d,"read_back":%d,"median_us":%d,"p99_us":%d,"max_us":%d}`+"\n",
			r.Requests, r.Published, r.Stored, r.Duplicates, r.Topics, r.Delivered, r.Live, r.ReadBack,
			r.Median.Microseconds(), r.P99.Microseconds(), r.Max.Microseconds())
		return err
	}
	_, err := fmt.Fprintf(a.out, `
In     %d envelopes in %d requests on %d topics; %d were repeats and stored once
Out    %d delivered on the stream, each once and in order, %d of them live
       %d read back by query, all as they were sent (key packages have no query)
Speed  publish call to delivery: median %.1f ms, 99%% below %.1f ms, slowest %.1f ms
`, r.Published, r.Requests, r.Topics, r.Duplicates, r.Delivered, r.Live, r.ReadBack, ms(r.Median), ms(r.P99), ms(r.Max))
	return err
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
