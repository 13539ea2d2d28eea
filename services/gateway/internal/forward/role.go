// Package forward carries calls to the instances of a role: raw bytes in, raw
// bytes out. It absorbs restarts (design section 7): a call waits while no
// instance is ready, and is repeated when its instance went away.
package forward

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
)

// Config bounds what the gateway does for a call whose role is away.
type Config struct {
	// Hold is how long a call waits for a ready instance, repeats included.
	Hold time.Duration `env:"GATEWAY_HOLD" envDefault:"10s"`
	// BodyBudgetBytes bounds the request bodies that arrive or are held.
	BodyBudgetBytes int64 `env:"GATEWAY_BODY_BUDGET_BYTES" envDefault:"268435456"`
	// AnswerBudgetBytes bounds the answers on their way to clients, until they have
	// taken them.
	AnswerBudgetBytes int64 `env:"GATEWAY_ANSWER_BUDGET_BYTES" envDefault:"268435456"`
}

// shareOf is the part of a budget that one connection may have: one in shareOf.
const shareOf = 4

// Budgets are the budgets of the configuration. A request fits the share of one
// connection compressed and inflated, and so does an answer.
func (c Config) Budgets(maxRequestBytes, maxResponseBytes int64) caller.Budgets {
	return caller.Budgets{
		Bodies:  budget.New(c.BodyBudgetBytes, max(c.BodyBudgetBytes/shareOf, 2*maxRequestBytes+1<<20)),
		Answers: budget.New(c.AnswerBudgetBytes, max(c.AnswerBudgetBytes/shareOf, maxResponseBytes)),
	}
}

// Validate names each variable that is out of range.
func (c Config) Validate() error {
	var errs []error
	if c.Hold < 0 {
		errs = append(errs, fmt.Errorf("XMTP_GATEWAY_HOLD is %v, expected at least 0s", c.Hold))
	}
	for name, bytes := range map[string]int64{"BODY": c.BodyBudgetBytes, "ANSWER": c.AnswerBudgetBytes} {
		if bytes < 1<<20 {
			errs = append(errs, fmt.Errorf("XMTP_GATEWAY_%s_BUDGET_BYTES is %d, expected at least %d", name, bytes, 1<<20))
		}
	}
	return errors.Join(errs...)
}

// Role is the instances of one role. It is safe for concurrent use.
type Role struct {
	name    string
	conn    *grpc.ClientConn
	config  Config
	budgets caller.Budgets
	metrics *telemetry.Metrics
	// up says that an instance is ready. To ask the connection for its state would
	// be a lock that all calls share.
	up      atomic.Bool
	stop    context.CancelFunc
	watched sync.WaitGroup
	// maxResponseBytes is named in the error of a longer response.
	maxResponseBytes int
}

// Deps is what a role needs beside its configuration.
type Deps struct {
	// Name is the role in errors: publisher, reader, streamer.
	Name             string
	Endpoints        string
	MaxResponseBytes int
	Budgets          caller.Budgets
	Metrics          *telemetry.Metrics
}

// NewRole prepares the connections to a role. Close ends them.
func NewRole(config Config, deps Deps) (*Role, error) {
	conn, err := rpc.Dial(deps.Endpoints, rpc.DialDeps{MaxResponseBytes: deps.MaxResponseBytes})
	if err != nil {
		return nil, fmt.Errorf("reach the %s: %w", deps.Name, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Role{
		name: deps.Name, conn: conn, config: config, budgets: deps.Budgets, stop: stop,
		metrics: deps.Metrics, maxResponseBytes: deps.MaxResponseBytes,
	}
	r.watched.Go(func() { r.follow(ctx) })
	return r, nil
}

// follow keeps up true, until ctx ends.
func (r *Role) follow(ctx context.Context) {
	for {
		state := r.conn.GetState()
		r.up.Store(state == connectivity.Ready)
		if !r.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// Close ends all connections and what runs on them.
func (r *Role) Close() error {
	r.stop()
	r.watched.Wait()
	return r.conn.Close()
}

// AwaitReady waits until an instance is ready, or ctx ends.
func (r *Role) AwaitReady(ctx context.Context) error {
	for {
		state := r.conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Idle:
			r.conn.Connect()
		default:
		}
		if !r.conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}

// missingGrace is how long no instance may be ready before that is worth a word.
// A connection that is made anew, or an instance that restarts, takes less.
const missingGrace = 2 * time.Second

// Watch tells when no instance has been ready for a while, and when one is
// again, until ctx ends.
func (r *Role) Watch(ctx context.Context, changed func(ready bool)) {
	ready, since := true, time.Now()
	for ctx.Err() == nil {
		state := r.conn.GetState()
		if state == connectivity.Ready {
			if !ready {
				ready = true
				changed(true)
			}
			r.conn.WaitForStateChange(ctx, state)
			since = time.Now()
			continue
		}
		if state == connectivity.Idle {
			r.conn.Connect()
		}
		if ready && time.Since(since) >= missingGrace {
			ready = false
			changed(false)
		}
		waiting, stop := ctx, context.CancelFunc(func() {})
		if ready {
			waiting, stop = context.WithDeadline(ctx, since.Add(missingGrace))
		}
		r.conn.WaitForStateChange(waiting, state)
		stop()
	}
}

// Name is the role's name.
func (r *Role) Name() string { return r.name }

// Unary calls a unary method of the role and frees the request. The context
// carries the outgoing metadata. Every unary method of the API is idempotent,
// so a call whose instance went away is repeated on another one.
func (r *Role) Unary(ctx context.Context, method string, request *rpc.Frame) (*rpc.Frame, error) {
	defer request.Free()
	u := unaryCall{role: r, method: method, request: request, client: r.budgets.From(ctx), hold: hold{role: r}}
	defer u.hold.release()
	if err := u.hold.room(ctx, u.client, request); err != nil {
		return nil, err
	}
	for {
		if err := u.hold.ready(ctx); err != nil {
			return nil, err
		}
		response, err := u.attempt(ctx)
		if err == nil {
			return response, nil
		}
		final := r.judge(err, u.trailer)
		if final != nil {
			return nil, final
		}
		r.metrics.GatewayRepeatedCalls.Add(ctx, 1)
		if !u.hold.pause(ctx) {
			return nil, r.away(ctx, err)
		}
	}
}

// judge returns the error for the caller, or nil when another instance may do
// better.
func (r *Role) judge(err error, trailer metadata.MD) error {
	failure := status.Convert(err)
	switch failure.Code() {
	case codes.Unavailable:
		if pushback := trailer.Get(rpc.Pushback); len(pushback) == 0 || pushback[0] != rpc.PushbackNever {
			return nil
		}
		if cause := trailer.Get(rpc.Cause); len(cause) > 0 && cause[0] == rpc.CauseCaller {
			return rpc.OfCaller(err)
		}
	case codes.ResourceExhausted:
		if strings.Contains(failure.Message(), "received message larger than max") {
			return fault.Errorf(fault.TooLong, "the response is longer than the %d bytes allowed; ask for less", r.maxResponseBytes)
		}
	default:
	}
	return err
}

// away is the error of a call that found no instance in time. It names no
// address: the cause is for the log.
func (r *Role) away(ctx context.Context, cause error) error {
	if err := context.Cause(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	return fault.Wrap(fault.Unavailable, cause, "no instance of the %s is ready; try again later", r.name)
}
