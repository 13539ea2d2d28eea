// Command bench measures the publisher against the row rate of PostgreSQL
// itself: pgbench runs the very statement by which a publisher stores one
// envelope, on the same server and in turns with the publisher. Its figures are in
// docs/benchmarks/publisher.md.
//
//	go run ./internal/bench -clients 64 -rounds 5 -length 10s
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pgbench"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/proctime"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

type options struct {
	clients, conns, topics, size int
	rounds                       int
	length                       time.Duration
	least                        bool
	profile                      string
}

func main() {
	var o options
	serving := flag.Bool("serve", false, "be the publisher (the program starts itself with this)")
	flag.IntVar(&o.clients, "clients", 64, "callers that each wait for their answer")
	flag.IntVar(&o.conns, "conns", 4, "connections that the callers share")
	flag.IntVar(&o.topics, "topics", 1000, "groups that are written to")
	flag.IntVar(&o.size, "size", 1024, "bytes of a message's ciphertext")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of pgbench and publisher in turns")
	flag.DurationVar(&o.length, "length", 10*time.Second, "length of each turn")
	flag.BoolVar(&o.least, "least", false, "pgbench runs the least statement that stores a row, instead of the publisher's")
	flag.StringVar(&o.profile, "profile", "", "file for a CPU profile of the publisher")
	flag.Parse()
	ctx := context.Background()
	var err error
	if *serving {
		err = serve(ctx, o.profile)
	} else {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run starts the servers and takes turns.
func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "publisher-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL's user has to get in
		return err
	}
	postgres, err := pglocal.StartPrimary(ctx, pglocal.Options{Dir: filepath.Join(dir, "postgres")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Stop(pglocal.Immediate)) }()
	url := postgres.URL("postgres")
	if _, err := store.Migrate(ctx, config.Secret(url)); err != nil {
		return err
	}
	bus, err := natslocal.Start(natslocal.Options{})
	if err != nil {
		return err
	}
	defer bus.Stop()
	child, err := startChild(url, bus.URL(), o.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, child.stop()) }()
	yardstick, err := pgbench.New(pgbench.Options{Dir: dir, URL: url, Least: o.least, Topics: o.topics, MessageBytes: o.size})
	if err != nil {
		return err
	}
	return takeTurns(ctx, o, filepath.Join(postgres.Dir(), "data"), yardstick, child)
}

func takeTurns(ctx context.Context, o options, dataDir string, yardstick *pgbench.Pgbench, child *child) error {
	load, err := newLoad(child.address, o)
	if err != nil {
		return err
	}
	if _, err := load.run(ctx, o.clients, time.Second); err != nil { // connections and plans
		return err
	}
	var ratios, latencies, cpus []float64
	for round := range o.rounds {
		base, baseCPU, err := turn(ctx, o, dataDir, child, rowsOf(yardstick))
		if err != nil {
			return err
		}
		ours, ourCPU, err := turn(ctx, o, dataDir, child, load.run)
		if err != nil {
			return err
		}
		ratios = append(ratios, ours.rate()/base.rate())
		latencies = append(latencies, ours.latency().Seconds()/base.latency().Seconds())
		cpus = append(cpus, ourCPU.publisher)
		fmt.Printf("round %d: pgbench %6.0f/s %v   publisher %6.0f/s %v p99 %v   ratio %.2f   latency ratio %.2f   CPU per message: publisher %.1f µs, PostgreSQL %.1f µs, under pgbench %.1f µs\n",
			round+1, base.rate(), base.latency().Round(time.Microsecond), ours.rate(), ours.latency().Round(time.Microsecond),
			ours.p99.Round(time.Microsecond), ratios[round], latencies[round], ourCPU.publisher, ourCPU.postgres, baseCPU.postgres)
	}
	fmt.Printf("median: ratio %.2f   latency ratio %.2f   publisher CPU %.1f µs/message\n", median(ratios), median(latencies), median(cpus))
	return nil
}

// rowsOf is a turn of pgbench.
func rowsOf(yardstick *pgbench.Pgbench) func(context.Context, int, time.Duration) (result, error) {
	return func(ctx context.Context, clients int, length time.Duration) (result, error) {
		r, err := yardstick.Run(ctx, clients, length)
		if err != nil {
			return result{}, err
		}
		return result{count: r.Count, length: time.Duration(float64(r.Count) / r.Rate * float64(time.Second)), clients: clients}, nil
	}
}

// perMessage is CPU time in microseconds for one message.
type perMessage struct{ publisher, postgres float64 }

// turn runs one side and accounts for its CPU time.
func turn(ctx context.Context, o options, dataDir string, child *child, run func(context.Context, int, time.Duration) (result, error)) (result, perMessage, error) {
	publisherBefore, err := child.cpu()
	if err != nil {
		return result{}, perMessage{}, err
	}
	postgresBefore, err := proctime.OfPostgres(dataDir)
	if err != nil {
		return result{}, perMessage{}, err
	}
	r, err := run(ctx, o.clients, o.length)
	if err != nil {
		return result{}, perMessage{}, err
	}
	publisherAfter, err := child.cpu()
	if err != nil {
		return result{}, perMessage{}, err
	}
	postgresAfter, err := proctime.OfPostgres(dataDir)
	each := func(d time.Duration) float64 { return d.Seconds() / float64(r.count) * 1e6 }
	return r, perMessage{each(publisherAfter - publisherBefore), each(postgresAfter - postgresBefore)}, err
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// result is what one turn did.
type result struct {
	count   int
	length  time.Duration
	clients int
	p99     time.Duration
}

func (r result) rate() float64 { return float64(r.count) / r.length.Seconds() }

// latency is the mean: clients wait all the time.
func (r result) latency() time.Duration {
	return time.Duration(float64(r.length) * float64(r.clients) / float64(r.count))
}

// serve is the publisher's process, configured by its environment.
func serve(ctx context.Context, profile string) error {
	cfg, err := config.Load[publisher.Config]()
	if err != nil {
		return err
	}
	debug.SetGCPercent(cfg.GCPercent)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	role, err := publisher.New(cfg, publisher.Deps{
		Listener: listener, Metrics: telemetry.Discard(),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return untilParentEnds(ctx, profile, role.Run)
}
