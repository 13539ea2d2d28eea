package publisher

import (
	"context"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/store"
)

const (
	healthEvery  = time.Second
	healthWithin = 2 * time.Second
)

// watchHealth keeps the role's health true to its dependencies: the database is
// reachable, takes writes, and has a schema that this binary works with. The bus is not one of
// them.
func (p *Publisher) watchHealth(ctx context.Context) {
	migrated := !p.cfg.Migrate
	healthy, known := false, false
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	for {
		err := p.checkHealth(ctx, &migrated)
		if ctx.Err() != nil {
			return
		}
		if ok := err == nil; ok != healthy || !known {
			healthy, known = ok, true
			if ok {
				p.deps.Logger.Info("ready")
			} else {
				p.deps.Logger.Warn("not ready", "cause", err)
			}
		} else if !ok {
			p.deps.Logger.Debug("still not ready", "cause", err)
		}
		p.server.SetServing(healthy)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (p *Publisher) checkHealth(ctx context.Context, migrated *bool) error {
	if !*migrated {
		// It has its own time limit: another instance may be building an index.
		version, err := store.Migrate(ctx, p.cfg.PrimaryURL)
		if err != nil {
			return err
		}
		p.deps.Logger.Info("the database schema is up to date", "version", version)
		*migrated = true
	}
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	if err := p.store.Pool().CheckSchema(ctx); err != nil {
		return err
	}
	return p.store.CheckServer(ctx)
}
