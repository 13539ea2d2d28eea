// Package forward carries calls to the instances of a role: raw bytes in, raw
// bytes out. It absorbs restarts (design section 7): a call waits while no
// instance is ready, and is repeated when its instance went away.
package forward

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Config bounds what the gateway does for a call whose role is away.
type Config struct {
	// Hold is how long a call waits for a ready instance, repeats included.
	Hold time.Duration `env:"GATEWAY_HOLD" envDefault:"10s"`
	// BodyBudgetBytes bounds the request bodies in flight or held.
	BodyBudgetBytes int64 `env:"GATEWAY_BODY_BUDGET_BYTES" envDefault:"536870912"`
}

// Validate names each variable that is out of range.
func (c Config) Validate() error {
	var errs []error
	if c.Hold < 0 {
		errs = append(errs, fmt.Errorf("XMTP_GATEWAY_HOLD is %v, expected at least 0s", c.Hold))
	}
	if c.BodyBudgetBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("XMTP_GATEWAY_BODY_BUDGET_BYTES is %d, expected at least %d", c.BodyBudgetBytes, 1<<20))
	}
	return errors.Join(errs...)
}

// Role is the instances of one role. It is safe for concurrent use.
type Role struct {
	name    string
	conn    *grpc.ClientConn
	config  Config
	budget  *Budget
	metrics *telemetry.Metrics
	// maxResponseBytes is named in the error of a longer response.
	maxResponseBytes int
}

// Deps is what a role needs beside its configuration.
type Deps struct {
	// Name is the role in errors: publisher, reader, streamer.
	Name             string
	Endpoints        string
	MaxResponseBytes int
	Budget           *Budget
	Metrics          *telemetry.Metrics
}

// NewRole prepares the connections to a role. Close ends them.
func NewRole(config Config, deps Deps) (*Role, error) {
	conn, err := rpc.Dial(deps.Endpoints, rpc.DialDeps{MaxResponseBytes: deps.MaxResponseBytes})
	if err != nil {
		return nil, fmt.Errorf("reach the %s: %w", deps.Name, err)
	}
	return &Role{
		name: deps.Name, conn: conn, config: config, budget: deps.Budget,
		metrics: deps.Metrics, maxResponseBytes: deps.MaxResponseBytes,
	}, nil
}

// Close ends all connections and what runs on them.
func (r *Role) Close() error { return r.conn.Close() }

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
	h := hold{role: r}
	defer h.release()
	give, err := h.take(ctx, request.Data.Len())
	if err != nil {
		return nil, err
	}
	defer give()
	for {
		if err := h.ready(ctx); err != nil {
			return nil, err
		}
		response := &rpc.Frame{}
		var trailer metadata.MD
		err := r.conn.Invoke(ctx, method, rpc.Shared{Frame: request}, response, grpc.Trailer(&trailer))
		if err == nil {
			return response, nil
		}
		final := r.judge(err, trailer)
		if final != nil {
			return nil, final
		}
		r.metrics.GatewayRepeatedCalls.Add(ctx, 1)
		if !h.pause(ctx) {
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
