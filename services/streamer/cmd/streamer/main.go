// Command streamer runs the streamer role alone.
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
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

func main() {
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, logger); err != nil {
		logger.Error("the streamer ended", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, logger *slog.Logger) error {
	cfg, err := config.Load[streamer.Config]()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on XMTP_STREAMER_LISTEN: %w", err)
	}
	role, err := streamer.New(cfg, streamer.Deps{Listener: listener, Logger: logger, Metrics: telemetry.Discard()})
	if err != nil {
		return err
	}
	return role.Run(ctx)
}
