package gateway

import (
	"context"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
)

// admission refuses native calls before anything is done for them. What it refuses is
// counted like every other call.
type admission struct {
	budgets        caller.Budgets
	calls          *caller.Calls
	observer       *rpc.Observer
	kinds          map[string]caller.Kind // of the methods of the API
	maxHeaderBytes int
}

func (g *Gateway) newAdmission(methods []method) *admission {
	a := &admission{
		budgets: g.budgets, calls: g.calls,
		observer: rpc.NewObserver(g.deps.Logger, g.deps.Metrics), kinds: map[string]caller.Kind{},
		maxHeaderBytes: g.config.Front.MaxHeaderBytes,
	}
	for _, m := range methods {
		a.kinds[m.fullName()] = caller.KindOf(m.fullName(), m.stream != nil)
	}
	return a
}

// tap is run for the headers of each call, by the goroutine that reads the
// connection.
func (a *admission) tap(ctx context.Context, call *tap.Info) (context.Context, error) {
	kind, known := a.kinds[call.FullMethodName]
	if !known { // it may be a stream, such as that of the reflection
		kind = caller.KindOf(call.FullMethodName, true)
	}
	err := a.checkHeader(call.Header)
	client := a.budgets.From(ctx)
	if err == nil {
		err = a.calls.Begin(client, kind)
	}
	if err != nil {
		return ctx, a.refused(ctx, call.FullMethodName, known, kind, err)
	}
	context.AfterFunc(ctx, func() { a.calls.End(client, kind) })
	return ctx, nil
}

// fieldBytes is what HTTP/2 adds to the length of a header field.
const fieldBytes = 32

func (a *admission) checkHeader(header metadata.MD) error {
	length := 0
	for name, values := range header {
		for _, value := range values {
			length += len(name) + len(value) + fieldBytes
		}
	}
	if length > a.maxHeaderBytes {
		return fault.Errorf(fault.Exhausted, "the headers of the call are %d bytes long, expected at most %d", length, a.maxHeaderBytes)
	}
	return nil
}

// refused counts a refusal, and returns it as the status of the call.
func (a *admission) refused(ctx context.Context, fullMethod string, known bool, kind caller.Kind, err error) error {
	if !known {
		fullMethod = rpc.UnknownMethod
	}
	name := "unary"
	if kind == caller.Stream {
		name = "server_stream"
	}
	_, end := a.observer.Begin(ctx, fullMethod, name)
	end(err)
	return rpc.Status(err).Err()
}
