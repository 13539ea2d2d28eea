package publisher

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/judge"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

// The time limit of a publish grows with its envelopes.
const (
	baseLimit          = 5 * time.Second
	envelopesPerSecond = 25_000
	maxLimit           = 60 * time.Second
	// groupTimeout leaves a request whose shared transaction took too long the
	// time for one alone.
	groupTimeout = 2500 * time.Millisecond
	// againLockTimeout is how long a request that failed once waits for one lock. The
	// first time it takes a place that others need.
	againLockTimeout = 3 * time.Second
)

// limitOf is the time limit of a request.
func limitOf(envelopes int) time.Duration {
	return min(baseLimit+time.Duration(envelopes)*time.Second/envelopesPerSecond, maxLimit)
}

// maxAttempts bounds how often a request is validated and committed, when each time
// the database turns out to be another one.
const maxAttempts = 4

// publish is the Publish RPC.
func (p *Publisher) publish(ctx context.Context, wire []byte) (*rpc.Frame, error) {
	outline, err := request.Look(wire, p.cfg.Limits)
	var r *request.Request
	if err == nil {
		r, err = p.run(ctx, &outline, time.Now().Add(limitOf(outline.Envelopes)))
	}
	if err != nil {
		p.countRejection(ctx, outline.Envelopes, err)
		return nil, err
	}
	p.countStored(ctx, r)
	return rpc.FrameOf(r.Response()), nil
}

// run validates and commits a request, from the beginning when the database was lost or
// replaced on the way: findings hold for one server only. A database that is away is
// tried once more, since a connection may have been an old one.
func (p *Publisher) run(ctx context.Context, o *request.Outline, deadline time.Time) (*request.Request, error) {
	if o.Identity { // chains have their own time, beside that of a publish
		deadline = deadline.Add(p.cfg.Wallet.Timeout)
	}
	if o.Checked > 0 { // which may wait, beside the commit, which knows its deadline
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	var first error
	for attempt := 1; ; attempt++ {
		r, err := p.attempt(ctx, o, deadline)
		if first != nil && err != nil && fault.KindOf(err) == fault.Late {
			return nil, first
		}
		again := errors.Is(err, judge.ErrOutdated) && attempt < maxAttempts || store.IsAway(err) && attempt == 1
		if !again || ctx.Err() != nil || !time.Now().Before(deadline) {
			return r, err
		}
		first = err
	}
}

// attempt validates and commits a request once. What may wait for a chain is checked
// before any memory is taken that others need to store theirs.
func (p *Publisher) attempt(ctx context.Context, o *request.Outline, deadline time.Time) (*request.Request, error) {
	var checked *request.Request
	var checking lease
	defer func() { checking.end() }()
	if o.Identity || o.Hopeless {
		var err error
		if checking, err = p.memory.toCheck(ctx, o, deadline); err != nil {
			return nil, err
		}
		if checked, err = p.check(ctx, o); err != nil {
			return nil, err
		}
	}
	storing, err := p.memory.toStore(ctx, o, deadline)
	if err != nil {
		return nil, err
	}
	defer storing.end()
	checking.end()
	return p.parseAndCommit(ctx, o, checked, deadline)
}

// check validates what has to be, and holds nothing else of the request.
func (p *Publisher) check(ctx context.Context, o *request.Outline) (*request.Request, error) {
	r, failed := o.ParseChecked(ctx, p.cfg.Limits, p.budgets.Decoding)
	r.Era = p.store.Era() // before anything is read: findings of a later era are outdated then, too
	if failed != nil {
		return nil, p.lowestFailure(ctx, r, failed)
	}
	return r, p.validator.Validate(ctx, r)
}

// parseAndCommit parses a request, which takes the most memory, and commits it.
func (p *Publisher) parseAndCommit(ctx context.Context, o *request.Outline, checked *request.Request, deadline time.Time) (*request.Request, error) {
	r, failed, err := o.Parse(ctx, p.cfg.Limits, p.budgets.Decoding)
	if err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, p.lowestFailure(ctx, r, failed)
	}
	if len(r.Envelopes) == 0 {
		return r, nil
	}
	if checked != nil {
		r.Adopt(checked)
	} else if err := p.validator.Validate(ctx, r); err != nil { // key packages, which wait for nothing
		return nil, err
	}
	r.Trace = notice.TraceOf(trace.SpanContextFromContext(ctx))
	if err := p.committer.Do(ctx, r, deadline); err != nil {
		return nil, err
	}
	return r, r.Err
}

// lowestFailure is the answer to a request that cannot succeed since one of its
// envelopes is malformed: the failure of an earlier envelope goes first, unless
// that one is stored already.
func (p *Publisher) lowestFailure(ctx context.Context, r *request.Request, failed *fault.Error) error {
	if err := p.validator.Validate(ctx, r); err != nil {
		return failed
	}
	var keys []store.Key
	var failures []*fault.Error
	for i := range r.Envelopes {
		if e := &r.Envelopes[i]; e.Failure != nil && e.Failure.Kind == fault.Invalid {
			keys = append(keys, store.Key{Topic: e.Topic, Hash: e.Hash})
			failures = append(failures, e.Failure.At(e.Index))
		}
	}
	if len(keys) == 0 {
		return failed
	}
	stored, err := p.store.FindStored(ctx, keys)
	if err != nil {
		return failed
	}
	for i, failure := range failures {
		if _, ok := stored[i]; !ok {
			return failure
		}
	}
	return failed
}

// commit runs the transaction of a group: package judge decides, or is told.
func (p *Publisher) commit(ctx context.Context, requests []*request.Request, again bool) error {
	group := judge.NewGroup(p.rules, requests)
	batch := group.Batch()
	if again {
		batch.LockTimeout = againLockTimeout
	}
	if limit := limitOf(len(batch.Drafts)); len(requests) == 1 && limit > p.cfg.Pool.StatementTimeout {
		batch.StatementTimeout = limit
	}
	ctx, end := p.traceGroup(ctx, requests)
	begun := time.Now()
	outcome, err := p.store.Commit(ctx, batch, group.Decide)
	end(err)
	p.deps.Metrics.PublishGroupSize.Record(ctx, int64(len(requests)))
	p.deps.Metrics.PublishCommit.Record(ctx, time.Since(begun).Seconds())
	if err != nil {
		p.deps.Logger.Warn("a publish transaction failed", "requests", len(requests), "again", again, "cause", err)
		return err
	}
	p.sender.Queue(ctx, group.Tell(outcome))
	return nil
}
