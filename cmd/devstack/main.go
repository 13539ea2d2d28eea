// Command devstack runs the whole backend on this machine: a PostgreSQL primary
// and replica, NATS, and the four roles behind one gateway. `make run` starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

const usage = `devstack runs the whole backend on this machine and stops it on Ctrl-C.

Everything is kept below .data (XMTP_DEV_DATA moves it). All XMTP_ variables of
the roles are passed through; XMTP_PRIMARY_URL and XMTP_NATS_URL replace the
stack's own servers.

Flags:
`

func main() {
	verbose := flag.Bool("verbose", false, "log every call, not only those that failed")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "devstack:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, verbose bool) error {
	environment := environ()
	dir := environment["XMTP_DEV_DATA"]
	if dir == "" {
		dir = ".data"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if environment["XMTP_GATEWAY_LISTEN"] == "" {
		environment["XMTP_GATEWAY_LISTEN"] = "127.0.0.1:5050"
	}
	observed, err := observe(ctx, environment, verbose)
	if err != nil {
		return err
	}
	defer observed.Close(ctx)
	begun := time.Now()
	running, err := stack.Start(ctx, stack.Options{
		Dir: dir, Environment: environment,
		Progress: func(step string) { fmt.Fprintf(out, "  %s\n", step) },
		Logger:   observed.Logger(), Telemetry: observed,
	})
	if err != nil {
		return err
	}
	// The same trade of memory for time that a publisher of its own makes.
	cfg, err := config.LoadFrom[publisher.Config](running.Environment())
	if err != nil {
		return errors.Join(err, running.Stop())
	}
	debug.SetGCPercent(cfg.GCPercent)
	fmt.Fprintf(out, "\nReady after %.1f s.\n\n%s\n", time.Since(begun).Seconds(), table(running.Endpoints, environment))
	failure := running.Failed(ctx)
	fmt.Fprintln(out, "\nStopping.")
	if err := running.Stop(); err != nil {
		return err
	}
	return failure
}

// observe sets telemetry up as the environment says, but for people: text, and
// no more of it than they asked for.
func observe(ctx context.Context, environment map[string]string, verbose bool) (*telemetry.Telemetry, error) {
	settings := maps.Clone(environment)
	if settings["XMTP_LOG_LEVEL"] == "" {
		settings["XMTP_LOG_LEVEL"] = "warn"
	}
	if verbose {
		settings["XMTP_LOG_LEVEL"] = "debug"
	}
	if settings["XMTP_LOG_FORMAT"] == "" {
		settings["XMTP_LOG_FORMAT"] = "text"
	}
	cfg, err := config.LoadFrom[telemetry.Config](settings)
	if err != nil {
		return nil, err
	}
	return telemetry.Start(ctx, cfg, "dev", telemetry.Options{})
}

// environ is this process's environment as a map.
func environ() map[string]string {
	environment := map[string]string{}
	for _, entry := range os.Environ() {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, "XMTP_") {
			environment[name] = value
		}
	}
	return environment
}

// table shows where everything is. The URL of a server that is not the stack's
// own may hold a password, and what is shown here ends up in logs and pictures.
func table(e stack.Endpoints, environment map[string]string) string {
	scheme := "http"
	if environment["XMTP_TLS_CERT_FILE"] != "" {
		scheme = "https"
	}
	if environment["XMTP_PRIMARY_URL"] != "" {
		e.PrimaryURL = "as XMTP_PRIMARY_URL says"
		if e.ReplicaURL != "" {
			e.ReplicaURL = "as XMTP_REPLICA_URL says"
		}
	}
	if environment["XMTP_NATS_URL"] != "" {
		e.NATSURL = "as XMTP_NATS_URL says"
	}
	return fmt.Sprintf(`  gateway    %s://%s   gRPC, gRPC-Web, HTTP with JSON
  publisher  %s
  reader     %s
  streamer   %s
  primary    %s
  replica    %s
  NATS       %s

Try, in another shell:
  bin/xmtpctl demo     replay a recorded client session through the gateway
  bin/xmtpctl health   ask every service how it is
Ctrl-C stops everything; the data stays.`,
		scheme, e.Gateway, e.Publisher, e.Reader, e.Streamer, e.PrimaryURL, e.ReplicaURL, e.NATSURL)
}
