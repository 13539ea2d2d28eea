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

// bytesPerEnvelope is what one envelope takes in work beside its own bytes.
const bytesPerEnvelope = 1 << 10

// publish is the Publish RPC.
func (p *Publisher) publish(ctx context.Context, wire []byte) (*rpc.Frame, error) {
	envelopes := request.Count(wire)
	deadline := time.Now().Add(limitOf(envelopes))
	reckoned := min(int64(len(wire))+int64(envelopes)*bytesPerEnvelope, p.cfg.Group.MemoryBytes)
	if err := p.reserve(ctx, reckoned, deadline); err != nil {
		return nil, err
	}
	defer p.memory.Release(reckoned)
	r, err := p.run(ctx, wire, deadline)
	if err != nil {
		p.countRejection(ctx, envelopes, err)
		return nil, err
	}
	p.countStored(ctx, r)
	return rpc.FrameOf(r.Response()), nil
}

// reserve takes memory for a request.
func (p *Publisher) reserve(ctx context.Context, bytes int64, deadline time.Time) error {
	if p.memory.TryAcquire(bytes) { // a context with a deadline costs as much as parsing a short message
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := p.memory.Acquire(ctx, bytes)
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fault.Wrap(fault.Unavailable, err, "the publisher has no memory left for a request of this size now")
}

// run parses, validates and commits a request.
func (p *Publisher) run(ctx context.Context, wire []byte, deadline time.Time) (*request.Request, error) {
	r, failed, err := request.Parse(ctx, wire, p.cfg.Limits, p.budgets.Decoding)
	if err != nil {
		return nil, err
	}
	if r.Identity { // chains have their own time, beside that of a publish
		deadline = deadline.Add(p.cfg.Wallet.Timeout)
	}
	if r.NeedsValidation() { // which may wait, beside the commit, which knows its deadline
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	if failed != nil {
		return nil, p.lowestFailure(ctx, r, failed)
	}
	if len(r.Envelopes) == 0 {
		return r, nil
	}
	if err := p.validator.Validate(ctx, r); err != nil {
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
	if !r.NeedsValidation() {
		return failed
	}
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

// commit runs the transaction of a group.
func (p *Publisher) commit(ctx context.Context, requests []*request.Request, again bool) error {
	group := judge.NewGroup(p.rules, requests)
	batch := group.Batch()
	if again {
		batch.LockTimeout = againLockTimeout
	}
	if limit := limitOf(len(batch.Keys)); len(requests) == 1 && limit > p.cfg.Pool.StatementTimeout {
		batch.StatementTimeout = limit
	}
	ctx, end := p.traceGroup(ctx, requests)
	begun := time.Now()
	var notices []notice.Stored
	err := p.store.Commit(ctx, batch, func(locked store.Locked) (writes store.Writes, err error) {
		writes, notices, err = group.Judge(locked)
		return writes, err
	})
	end(err)
	p.deps.Metrics.PublishGroupSize.Record(ctx, int64(len(requests)))
	p.deps.Metrics.PublishCommit.Record(ctx, time.Since(begun).Seconds())
	if err != nil {
		p.deps.Logger.Warn("a publish transaction failed", "requests", len(requests), "again", again, "cause", err)
		return err
	}
	p.sender.Queue(ctx, notices)
	return nil
}
