// Command publisher runs the role that stores envelopes. Its configuration comes
// from the environment; "publisher migrate" applies the schema and ends.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/program"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

// version is set by the build.
var version = "dev"

func main() {
	role := program.Program{
		Name: telemetry.Publisher, Version: version, About: "stores envelopes and announces them to the streamers.",
		Commands: []program.Command{{Name: "migrate", About: "brings the schema of the database up to date and ends"}},
	}
	if code, done := role.Answer(os.Args[1:], os.Stdout, os.Stderr); done {
		os.Exit(code)
	}
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, logger, os.Args[1:]); err != nil {
		logger.Error("the publisher ended", "cause", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, logger *slog.Logger, args []string) error {
	if len(args) > 0 {
		return migrate(ctx, logger)
	}
	return serve(ctx)
}

func serve(ctx context.Context) error {
	cfg, err := config.Load[publisher.Config]()
	if err != nil {
		return err
	}
	debug.SetGCPercent(cfg.GCPercent)
	observed, err := telemetry.Start(ctx, cfg.Telemetry, version, telemetry.Options{})
	if err != nil {
		return err
	}
	defer observed.Close(ctx)
	metrics, err := observed.Metrics(ctx, telemetry.Publisher)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on XMTP_PUBLISHER_LISTEN: %w", err)
	}
	role, err := publisher.New(cfg, publisher.Deps{Listener: listener, Logger: observed.Logger(), Metrics: metrics})
	if err != nil {
		return err
	}
	return role.Run(ctx)
}

// migrateConfig is all that migrate needs.
type migrateConfig struct {
	PrimaryURL config.Secret `env:"PRIMARY_URL,required,notEmpty"`
}

func (c migrateConfig) Validate() error {
	return c.PrimaryURL.CheckURL("PRIMARY_URL", "postgres", "postgresql")
}

func migrate(ctx context.Context, logger *slog.Logger) error {
	cfg, err := config.Load[migrateConfig]()
	if err != nil {
		return err
	}
	version, err := store.Migrate(ctx, cfg.PrimaryURL)
	if err == nil {
		logger.Info("the database schema is up to date", "version", version)
	}
	return err
}
