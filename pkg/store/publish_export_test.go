package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// StoreAtOnce stores the drafts of a batch on a plain connection.
func StoreAtOnce(ctx context.Context, conn *pgx.Conn, batch Batch) (Locked, error) {
	return storeAtOnce(ctx, conn, batch)
}

// PublisherSettings are the settings of every session that publishes.
func PublisherSettings() map[string]string { return publisherSettings }

// Caution is how many batches look first after one that wrote in vain.
const Caution = caution
