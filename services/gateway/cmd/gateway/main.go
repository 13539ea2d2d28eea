// Command gateway serves the public port of the backend.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/program"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/gateway"
)

// version is set by the build.
var version = "dev"

func main() {
	role := program.Program{Name: telemetry.Gateway, Version: version, About: "serves the public port of the backend and forwards to the other roles."}
	if code, done := role.Answer(os.Args[1:], os.Stdout, os.Stderr); done {
		os.Exit(code)
	}
	if err := run(); err != nil {
		slog.New(slog.NewJSONHandler(os.Stderr, nil)).Error("the gateway stopped", "cause", err.Error())
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := config.Load[gateway.Config]()
	if err != nil {
		return err
	}
	observed, err := telemetry.Start(ctx, cfg.Telemetry, version, telemetry.Options{})
	if err != nil {
		return err
	}
	defer observed.Close(ctx)
	metrics, err := observed.Metrics(ctx, telemetry.Gateway)
	if err != nil {
		return err
	}
	listener, err := gateway.Listen(ctx, cfg)
	if err != nil {
		return err
	}
	server, err := gateway.New(cfg, gateway.Deps{Listener: listener, Logger: observed.Logger(), Metrics: metrics, Version: version})
	if err != nil {
		return err
	}
	return server.Run(ctx)
}
