// Command gateway serves the public port of the backend.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/gateway"
)

// version is set by the build.
var version = "dev"

func main() {
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(logger); err != nil {
		logger.Error("the gateway stopped", "cause", err.Error())
		os.Exit(1)
	}
}

func run(logger *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := config.Load[gateway.Config]()
	if err != nil {
		return err
	}
	listener, err := gateway.Listen(ctx, cfg)
	if err != nil {
		return err
	}
	server, err := gateway.New(cfg, gateway.Deps{Listener: listener, Logger: logger, Metrics: telemetry.Discard(), Version: version})
	if err != nil {
		return err
	}
	return server.Run(ctx)
}
