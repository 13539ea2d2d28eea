package gateway_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// slowRole answers after a moment, so that calls are in flight at any time.
func slowRole(drainTimeout time.Duration) *fakeRole {
	role := behavingRole()
	role.drainTimeout = drainTimeout
	role.query = func(ctx context.Context, _ *backendv1.QueryRequest) (*backendv1.QueryResponse, error) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
			return &backendv1.QueryResponse{}, nil
		}
	}
	return role
}

func TestTheRestartOfARoleFailsNoUnaryCall(t *testing.T) {
	for name, c := range map[string]struct {
		instances int
		drain     time.Duration
	}{
		"one instance, drained": {1, 5 * time.Second},
		"one instance, cut off": {1, 0},
		"two instances":         {2, 5 * time.Second},
		"two, cut off":          {2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var instances []*fakeRole
			var addresses []string
			for range c.instances {
				instance := slowRole(c.drain)
				instance.start(t, "")
				instances = append(instances, instance)
				addresses = append(addresses, instance.address)
			}
			f := startGateway(t, &fakeRole{address: strings.Join(addresses, ",")}, nil)
			calls, finish := load(t, f)
			for round := range 4 {
				instance := instances[round%len(instances)]
				awaitMore(t, calls, 100)
				instance.stop()
				if c.instances > 1 {
					awaitMore(t, calls, 100)
				}
				instance.start(t, instance.address)
			}
			awaitMore(t, calls, 100)
			finish()
		})
	}
}

// load calls until finish, by native gRPC and by gRPC-Web, and fails the test
// with the first error.
func load(t *testing.T, f *front) (calls *atomic.Int64, finish func()) {
	calls = new(atomic.Int64)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var failure atomic.Pointer[error]
	client := transport(t, false)
	client.MaxIdleConnsPerHost = 8
	callers := []caller{nativeCaller(f.conn), connectCaller("http://"+f.address, client, false, connect.WithGRPCWeb())}
	for i := range 16 {
		running.Go(func() {
			for ctx.Err() == nil {
				// Never cancelled: a call that was begun must end well.
				if _, err := callers[i%2].query(context.WithoutCancel(ctx), &backendv1.QueryRequest{}); err != nil {
					failure.CompareAndSwap(nil, &err)
					return
				}
				calls.Add(1)
			}
		})
	}
	finish = func() {
		cancel()
		running.Wait()
		if err := failure.Load(); err != nil {
			require.NoError(t, *err)
		}
	}
	t.Cleanup(finish)
	return calls, finish
}

func awaitMore(t *testing.T, calls *atomic.Int64, more int64) {
	t.Helper()
	from := calls.Load()
	require.Eventually(t, func() bool { return calls.Load() >= from+more }, soon, time.Millisecond, "%d more calls", more)
}

func TestACallWhoseRoleStaysAwayIsUnavailable(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	role.stop()
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_HOLD": "300ms"})
	for name, c := range ways(t, f) {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			_, err := c.query(t.Context(), &backendv1.QueryRequest{})
			requireStatus(t, codes.Unavailable, "no instance of the reader is ready; try again later", err)
			require.GreaterOrEqual(t, time.Since(begun), 250*time.Millisecond)
			err = c.static(t.Context(), &backendv1.SubscribeStaticRequest{}, func(*backendv1.SubscribeStaticResponse) {})
			requireStatus(t, codes.Unavailable, "no instance of the streamer is ready; try again later", err)
		})
	}
}

func TestAHeldCallGoesOnWhenTheRoleComes(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	role.stop()
	f := startGateway(t, role, nil)
	for name, c := range ways(t, f) {
		if c.subscribe == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var waiting sync.WaitGroup
			waiting.Go(func() {
				_, err := c.query(t.Context(), &backendv1.QueryRequest{})
				assert.NoError(t, err)
			})
			waiting.Go(func() {
				frames := 0
				err := c.static(t.Context(), &backendv1.SubscribeStaticRequest{Topics: make([]*backendv1.TopicQuery, 2)},
					func(*backendv1.SubscribeStaticResponse) { frames++ })
				assert.NoError(t, err)
				assert.Equal(t, 3, frames)
			})
			stream := c.subscribe(t.Context())
			require.NoError(t, stream.Send(&backendv1.SubscribeRequest{}))
			role.start(t, role.address)
			got, err := stream.Receive()
			require.NoError(t, err)
			require.NotNil(t, got.GetStarted())
			waiting.Wait()
			role.stop()
			for err == nil { // the pong may come first
				_, err = stream.Receive()
			}
			requireStatus(t, codes.Unavailable, "", err)
		})
	}
}

func TestTheCallersDeadlineBoundsTheHold(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	role.stop()
	f := startGateway(t, role, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err := nativeCaller(f.conn).query(ctx, &backendv1.QueryRequest{})
	require.Contains(t, []codes.Code{codes.DeadlineExceeded, codes.Unavailable}, status.Code(err))
	require.Less(t, time.Since(begun), 5*time.Second)
}

func TestADrainEndsStreamsAtOnceAndLetsUnaryCallsFinish(t *testing.T) {
	role := behavingRole()
	asked := make(chan struct{}, 100)
	goOn := make(chan struct{})
	role.query = func(context.Context, *backendv1.QueryRequest) (*backendv1.QueryResponse, error) {
		asked <- struct{}{}
		<-goOn
		return &backendv1.QueryResponse{}, nil
	}
	role.static = func(_ *backendv1.SubscribeStaticRequest, stream grpc.ServerStream) error {
		if err := send(stream, &backendv1.SubscribeStaticResponse{}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	role.start(t, "")
	f := startGateway(t, role, nil)
	callers := ways(t, f)
	var unary, streams sync.WaitGroup
	opened := make(chan struct{}, len(callers))
	for name, c := range callers {
		unary.Go(func() {
			_, err := c.query(t.Context(), &backendv1.QueryRequest{})
			assert.NoError(t, err, name)
		})
		streams.Go(func() {
			err := c.static(t.Context(), &backendv1.SubscribeStaticRequest{}, func(*backendv1.SubscribeStaticResponse) { opened <- struct{}{} })
			assert.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", name, err)
			assert.Contains(t, status.Convert(err).Message(), "shutting down", name)
		})
	}
	for range callers {
		within(t, asked)
		within(t, opened)
	}
	ended := make(chan struct{})
	go func() {
		f.stop()
		close(ended)
	}()
	streams.Wait() // at once, while the unary calls go on

	// A page still reads UNAVAILABLE, with the headers that let it read.
	response := post(t, f, "application/grpc-web+proto", "/xmtp.backend.v1.QueryService/Query", nil)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "14", response.Header.Get("Grpc-Status"))
	require.Equal(t, "*", response.Header.Get("Access-Control-Allow-Origin"))

	close(goOn)
	unary.Wait()
	<-ended
}

func within(t *testing.T, signal <-chan struct{}) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(soon):
		require.Fail(t, "nothing came in time")
	}
}

// Who looks for the reason why a gateway is not ready, or why calls fail, finds
// the role in its log.
func TestTheLogNamesARoleThatIsMissing(t *testing.T) {
	present, missing := behavingRole(), behavingRole()
	present.start(t, "")
	missing.address = freeAddress(t)
	log := logtest.New()
	startGatewayLogging(t, present, map[string]string{"XMTP_STREAMER_ENDPOINT": missing.address}, log.Logger)
	logged := func(line string, times int) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Count(log.String(), line) == times }, soon, 10*time.Millisecond, line)
	}
	const gone, back = `"level":"WARN","msg":"no instance of the streamer is ready`, `"level":"INFO","msg":"an instance of the streamer is ready`
	for round := range 2 {
		logged(gone, round+1)
		require.Equal(t, round, strings.Count(log.String(), back))
		missing.start(t, missing.address)
		logged(back, round+1)
		missing.stop()
	}
	require.NotContains(t, log.String(), "of the publisher")
	require.NotContains(t, log.String(), "of the reader")
}
