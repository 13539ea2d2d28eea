// Command reader serves the reads of the backend to its gateways.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/program"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/reader"
)

// version is set by the build.
var version = "dev"

func main() {
	role := program.Program{Name: telemetry.Reader, Version: version, About: "answers the reads of the backend: queries, newest envelopes, inbox lookups, wallet signatures."}
	if code, done := role.Answer(os.Args[1:], os.Stdout, os.Stderr); done {
		os.Exit(code)
	}
	if err := run(); err != nil {
		slog.New(slog.NewJSONHandler(os.Stderr, nil)).Error("the reader stopped", "cause", err.Error())
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := config.Load[reader.Config]()
	if err != nil {
		return err
	}
	observed, err := telemetry.Start(ctx, cfg.Telemetry, version, telemetry.Options{})
	if err != nil {
		return err
	}
	defer observed.Close(ctx)
	metrics, err := observed.Metrics(ctx, telemetry.Reader)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on XMTP_READER_LISTEN: %w", err)
	}
	role, err := reader.New(cfg, reader.Deps{Listener: listener, Logger: observed.Logger(), Metrics: metrics})
	if err != nil {
		return err
	}
	return role.Run(ctx)
}
