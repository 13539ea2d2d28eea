// Package pgbench measures what PostgreSQL itself can store, as a yardstick for
// benchmarks: pgbench, its own load generator, stores one envelope a transaction
// with one statement.
package pgbench

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// OverheadBytes is what an envelope has beside the ciphertext of its message.
const OverheadBytes = 100

//go:embed least.sql
var leastSQL string

// Options say what is stored.
type Options struct {
	// Dir takes the script.
	Dir string
	// URL is a database with the backend's schema.
	URL string
	// Least takes a statement that does less than the publisher's own.
	Least bool
	// Topics is how many groups are written to, MessageBytes the ciphertext of a
	// message.
	Topics, MessageBytes int
}

// Pgbench runs a script. Make it with New.
type Pgbench struct{ program, script, settings, payload, topics, url string }

// New finds pgbench and writes its script.
func New(o Options) (*Pgbench, error) {
	binaries, err := pglocal.Find()
	if err != nil {
		return nil, err
	}
	sql, settings := store.StatementOfOne()
	if o.Least {
		sql, settings = leastSQL, nil
	}
	p := &Pgbench{
		program: filepath.Join(binaries.Dir, "pgbench"), script: filepath.Join(o.Dir, "publish.sql"), settings: sessionOptions(settings),
		payload: `\x` + strings.Repeat("5a", o.MessageBytes+OverheadBytes), topics: strconv.Itoa(o.Topics), url: o.URL,
	}
	return p, os.WriteFile(p.script, []byte(scriptOf(sql)), 0o600)
}

// scriptOf gives a statement values of its own. The hash is random, which is
// cheaper for the server than hashing; 90 days are the retention of a group message.
func scriptOf(sql string) string {
	return `\set n random(1, :topics)` + "\n" + strings.NewReplacer(
		"$1", `decode('00' || lpad(to_hex(:n::integer), 32, 'f'), 'hex')`,
		"$2", `(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))`,
		"$3", `7776000000000000`,
		"$4", `false`,
		"$5", `:payload`,
	).Replace(strings.TrimSpace(sql)) + ";\n"
}

func sessionOptions(settings map[string]string) string {
	var each []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		each = append(each, "-c "+name+"="+settings[name])
	}
	return strings.Join(each, " ")
}

// Result is what one run did. Rate is rows per second without the time to connect,
// Latency the mean of a transaction.
type Result struct {
	Count   int
	Rate    float64
	Latency time.Duration
}

// Run stores rows for some whole seconds, by clients that wait for each commit.
func (p *Pgbench) Run(ctx context.Context, clients int, length time.Duration) (Result, error) {
	command := exec.CommandContext(ctx, p.program, "--no-vacuum", "--protocol=prepared", "--file="+p.script,
		fmt.Sprintf("--client=%d", clients), fmt.Sprintf("--jobs=%d", min(clients, 2)), fmt.Sprintf("--time=%d", int(length.Seconds())),
		"--define=payload="+p.payload, "--define=topics="+p.topics, p.url)
	command.Env = append(os.Environ(), "PGOPTIONS="+p.settings)
	out, err := command.CombinedOutput()
	if err != nil {
		return Result{}, fmt.Errorf("pgbench: %w: %.300s", err, out)
	}
	var r Result
	var milliseconds float64
	for line := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(line, "number of transactions actually processed: "); ok {
			_, err = fmt.Sscanf(rest, "%d", &r.Count)
		} else if rest, ok := strings.CutPrefix(line, "latency average = "); ok {
			_, err = fmt.Sscanf(rest, "%f", &milliseconds)
		} else if rest, ok := strings.CutPrefix(line, "tps = "); ok {
			_, err = fmt.Sscanf(rest, "%f", &r.Rate)
		}
		if err != nil {
			return Result{}, fmt.Errorf("read what pgbench says: %w", err)
		}
	}
	if r.Count == 0 || r.Rate == 0 {
		return Result{}, fmt.Errorf("pgbench reported no transactions: %.300s", out)
	}
	r.Latency = time.Duration(milliseconds * float64(time.Millisecond))
	return r, nil
}
