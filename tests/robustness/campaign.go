// Package robustness breaks the backend under load and compares all that clients
// saw with what it holds in the end. make chaos runs a long campaign; the tests of
// this package run short ones and show that the checker notices a broken rule.
package robustness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
	"github.com/xmtp-selfhosted/backend/tests/robustness/fault"
	"github.com/xmtp-selfhosted/backend/tests/robustness/report"
	"github.com/xmtp-selfhosted/backend/tests/robustness/traffic"
)

// Options describe a campaign.
type Options struct {
	Seed     uint64
	Duration time.Duration
	// Only are the parts that break; none is all of them.
	Only []string
	// Binaries is a folder with the programs of the roles; empty builds them.
	Binaries string
	// BuildArguments go to go build, such as -overlay.
	BuildArguments []string
	// Environment is for the roles.
	Environment map[string]string
	// SettleWithin bounds the time from the last fault until every stream has
	// everything; 0 is far above what that takes.
	SettleWithin time.Duration
	// Keep is where the history of a failed run and the logs go.
	Keep string
	// Out is told what happens.
	Out io.Writer
}

// settleWithin is the default of Options.SettleWithin.
const settleWithin = 3 * time.Minute

// Run carries out a campaign. The error says that it could not be carried out;
// broken promises are in the report.
func Run(ctx context.Context, options Options) (_ *report.Report, err error) {
	dir, err := fault.TempDir()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binaries := options.Binaries
	if binaries == "" {
		binaries = filepath.Join(dir, "bin")
		say(options.Out, "building the roles")
		if err := fault.Build(ctx, binaries, options.BuildArguments...); err != nil {
			return nil, err
		}
	}
	say(options.Out, "starting PostgreSQL, its replica, NATS and six processes of the roles; seed %d", options.Seed)
	cluster, err := fault.Start(ctx, fault.Options{Dir: dir, Binaries: binaries, Publishers: 2, Streamers: 2, Environment: options.Environment})
	if err != nil {
		return nil, err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, cluster.Stop())
		}
	}()
	r, err := withTraffic(ctx, cluster, options)
	if err != nil {
		return nil, errors.Join(err, keepLogs(dir, options.Keep))
	}
	r.Problems = append(r.Problems, cluster.Died()...)
	stopped = true
	if err := cluster.Stop(); err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	panics, err := findPanics(dir)
	r.Problems = append(r.Problems, panics...)
	if !r.Passed() {
		err = errors.Join(err, keepLogs(dir, options.Keep))
	}
	return r, err
}

func withTraffic(ctx context.Context, cluster *fault.Cluster, options Options) (*report.Report, error) {
	t, err := traffic.Start(ctx, traffic.Config{
		Endpoint: cluster.Gateway, Seed: options.Seed, Groups: 24, Publishers: 4, Repeaters: 6, Readers: 2, Streams: 4, StaticStream: 2,
		Pause: 25 * time.Millisecond, Silence: 6 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	cluster.OnFailover = t.FailedOver
	r := &report.Report{Seed: options.Seed, Duration: options.Duration, Begun: time.Now()}
	if err := firstAcknowledged(ctx, t); err != nil {
		_ = t.Stop()
		return nil, err
	}
	r.Plan = fault.Plan(options.Seed, options.Duration, options.Only...)
	say(options.Out, "%d faults in %s", len(r.Plan), options.Duration)
	failure := cluster.Run(ctx, r.Plan, func(f fault.Fault) { say(options.Out, "%s", f) })
	if failure != nil {
		r.Problems = append(r.Problems, failure.Error())
	}
	healed := time.Now()
	t.StopPublishing()
	say(options.Out, "all faults are healed; visiting all inboxes, then waiting until every stream has everything")
	if err := t.VisitInboxes(ctx); err != nil {
		_ = t.Stop()
		return nil, err
	}
	if err := cluster.EndPublishing(ctx, cluster.Primary); err != nil {
		_ = t.Stop()
		return nil, err
	}
	table, heads, err := fault.Table(ctx, cluster.DatabaseURL(cluster.Primary))
	if err != nil {
		_ = t.Stop()
		return nil, err
	}
	settling, cancel := context.WithTimeout(ctx, cmp.Or(options.SettleWithin, settleWithin))
	defer cancel()
	if err := t.Settle(settling, heads); err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	r.Settled = time.Since(healed)
	history := t.Stop()
	history.Table, history.Heads = table, heads
	history.Lost = history.Missing(func(id topic.SequenceID) bool {
		return slices.ContainsFunc(cluster.Failovers, func(f fault.Failover) bool { return f.Lost(id) })
	})
	r.Lost = len(history.Lost)
	r.Counts, r.Rows, r.Topics = t.Recorder.Counts(), len(table), len(heads)
	r.Surprises = t.Recorder.Surprises()
	say(options.Out, "checking %d rows, %d pages and %d streams", len(table), len(history.Pages), len(history.Streams))
	r.Violations = check.All(history)
	return r, nil
}

// firstAcknowledged waits until the backend works.
func firstAcknowledged(ctx context.Context, t *traffic.Traffic) error {
	deadline := time.Now().Add(2 * time.Minute)
	for t.Recorder.Counts().Acknowledged < 20 {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("the backend did not begin to work: %v", t.Recorder.Counts().Codes)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func say(out io.Writer, format string, args ...any) {
	if out != nil {
		_, _ = fmt.Fprintf(out, format+"\n", args...)
	}
}
