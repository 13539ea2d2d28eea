package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// publishOneRow is all that a publish of one row does, in one statement, the least
// that PostgreSQL can be asked for.
//
//go:embed publish.sql
var publishOneRow string

// yardstick is the database that pgbench writes to: the backend's schema on the
// backend's server.
const yardstick = "yardstick"

// Of the messages that are published.
const (
	messageBytes  = 1024
	overheadBytes = 100 // what an envelope has beside the ciphertext
	benchTopics   = 1000
)

// pgbench is PostgreSQL's own load generator.
type pgbench struct{ program, script, url string }

func newPgbench(ctx context.Context, d *devStack) (*pgbench, error) {
	binaries, err := pglocal.Find()
	if err != nil {
		return nil, err
	}
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
	script := filepath.Join(d.dir, "publish.sql")
	return &pgbench{filepath.Join(binaries.Dir, "pgbench"), script, url}, os.WriteFile(script, []byte(publishOneRow), 0o600)
}

// run returns rows per second and the mean latency.
func (p *pgbench) run(ctx context.Context, clients int, length time.Duration) (rate float64, latency time.Duration, err error) {
	command := exec.CommandContext(ctx, p.program, "--no-vacuum", "--protocol=prepared", "--file="+p.script,
		fmt.Sprintf("--client=%d", clients), fmt.Sprintf("--jobs=%d", min(clients, 2)), fmt.Sprintf("--time=%d", int(length.Seconds())),
		`--define=payload=\x`+strings.Repeat("5a", messageBytes+overheadBytes), fmt.Sprintf("--define=topics=%d", benchTopics), p.url)
	out, err := command.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("pgbench: %w: %.300s", err, out)
	}
	var milliseconds float64
	for line := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(line, "latency average = "); ok {
			_, err = fmt.Sscanf(rest, "%f", &milliseconds)
		} else if rest, ok := strings.CutPrefix(line, "tps = "); ok {
			_, err = fmt.Sscanf(rest, "%f", &rate)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read what pgbench says: %w", err)
		}
	}
	if rate == 0 {
		return 0, 0, fmt.Errorf("pgbench reported no transactions: %.300s", out)
	}
	return rate, time.Duration(milliseconds * float64(time.Millisecond)), nil
}
