package main

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/pgbench"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// yardstick is the database that pgbench writes to: the backend's schema on the
// backend's server.
const yardstick = "yardstick"

// Of the messages that are published.
const (
	messageBytes = 1024
	benchTopics  = 1000
)

func newPgbench(ctx context.Context, d *devStack) (*pgbench.Pgbench, error) {
	admin, err := pgx.Connect(ctx, d.endpoints.PrimaryURL)
	if err != nil {
		return nil, err
	}
	defer func() { _ = admin.Close(ctx) }()
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+yardstick); err != nil {
		return nil, err
	}
	url := strings.Replace(d.endpoints.PrimaryURL, "/xmtp?", "/"+yardstick+"?", 1)
	if _, err := store.Migrate(ctx, config.Secret(url)); err != nil {
		return nil, err
	}
	return pgbench.New(pgbench.Options{Dir: d.dir, URL: url, Least: true, Topics: benchTopics, MessageBytes: messageBytes})
}
