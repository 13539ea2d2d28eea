package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 10 * time.Second

// running is a server under test with the log it writes.
type running struct {
	*rpc.Server
	address string
	log     *logtest.Log
	stop    func() error
}

const maxRequestBytes = 1000

func serve(t *testing.T, config rpc.Config, methods ...rpc.Method) *running {
	t.Helper()
	return serveWith(t, config, rpc.ServerDeps{Metrics: telemetry.Discard()}, methods...)
}

func serveWith(t *testing.T, config rpc.Config, deps rpc.ServerDeps, methods ...rpc.Method) *running {
	t.Helper()
	r := &running{log: logtest.New()}
	deps.Logger, deps.MaxRequestBytes = r.log.Logger, maxRequestBytes
	r.Server = rpc.NewServer(config, deps, rpc.Service{Name: "test.Service", Methods: methods})
	listener, err := freeport.Listen()
	require.NoError(t, err)
	r.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, listener) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	t.Cleanup(func() { _ = r.stop() })
	r.SetServing(true)
	return r
}

var patient = rpc.Config{DrainTimeout: soon, StopTimeout: soon}

func dial(t *testing.T, endpoints string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(endpoints, rpc.DialDeps{MaxResponseBytes: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func call(t *testing.T, conn *grpc.ClientConn, method string, request []byte) (response []byte, trailer metadata.MD, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var frame rpc.Frame
	err = conn.Invoke(ctx, "/test.Service/"+method, rpc.FrameOf(request), &frame, grpc.Trailer(&trailer), grpc.WaitForReady(true))
	return frame.Take(), trailer, err
}

func echo(_ context.Context, request []byte) (*rpc.Frame, error) { return rpc.FrameOf(request), nil }

func failing(err error) rpc.Method {
	return rpc.Method{Name: "Fail", Unary: func(context.Context, []byte) (*rpc.Frame, error) { return nil, err }}
}

// The caller can read its answer while what follows it has not even begun.
func TestWhatFollowsAnAnswerComesAfterIt(t *testing.T) {
	read, done := make(chan struct{}), make(chan struct{}, 1)
	answered := func() {
		<-read
		done <- struct{}{}
	}
	refusal := failing(fault.Errorf(fault.Invalid, "no"))
	refusal.Answered = answered
	s := serve(t, patient, rpc.Method{Name: "Echo", Unary: echo, Answered: answered}, refusal)
	conn := dial(t, s.address)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/test.Service/Echo", grpc.WaitForReady(true))
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(rpc.FrameOf([]byte("hello"))))
	require.NoError(t, stream.CloseSend())
	var frame rpc.Frame
	require.NoError(t, stream.RecvMsg(&frame))
	require.Equal(t, "hello", string(frame.Take()))
	require.Empty(t, done)
	close(read)
	require.ErrorIs(t, stream.RecvMsg(&frame), io.EOF)
	require.Len(t, done, 1)

	<-done
	_, _, err = call(t, conn, "Fail", nil)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.Len(t, done, 1, "also after a refusal")
}

// Proves API-130.
func TestALongMessageIsOutOfRange(t *testing.T) {
	s := serve(t, patient,
		rpc.Method{Name: "Echo", Unary: echo},
		rpc.Method{Name: "EchoStream", ClientStreams: true, Stream: func(stream grpc.ServerStream) error {
			var frame rpc.Frame
			if err := stream.RecvMsg(&frame); err != nil {
				return err
			}
			return stream.SendMsg(&frame)
		}})
	conn := dial(t, s.address)
	got, _, err := call(t, conn, "Echo", make([]byte, maxRequestBytes))
	require.NoError(t, err)
	require.Len(t, got, maxRequestBytes)
	_, _, err = call(t, conn, "Echo", make([]byte, maxRequestBytes+1))
	require.Equal(t, codes.OutOfRange, status.Code(err))
	require.ErrorContains(t, err, "1001 bytes long, expected at most 1000")

	for length, code := range map[int]codes.Code{maxRequestBytes: codes.OK, maxRequestBytes + 1: codes.OutOfRange} {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Service/EchoStream")
		require.NoError(t, err)
		require.NoError(t, stream.SendMsg(rpc.FrameOf(make([]byte, length))))
		require.NoError(t, stream.CloseSend())
		for err == nil {
			err = stream.RecvMsg(&rpc.Frame{})
		}
		if !errors.Is(err, io.EOF) {
			require.Equal(t, code, status.Code(err), length)
			continue
		}
		require.Equal(t, codes.OK, code, length)
	}
}

func TestAPanicIsAnInternalErrorOfOneCall(t *testing.T) {
	s := serve(t, patient,
		rpc.Method{Name: "Panic", Unary: func(context.Context, []byte) (*rpc.Frame, error) { panic("what a client sent") }},
		rpc.Method{Name: "Index", Unary: func(_ context.Context, request []byte) (*rpc.Frame, error) {
			return rpc.FrameOf(request[len(request)+5:]), nil
		}},
		rpc.Method{Name: "PanicStream", Stream: func(grpc.ServerStream) error { panic("what a client sent") }},
		rpc.Method{Name: "Echo", Unary: echo})
	conn := dial(t, s.address)
	for _, method := range []string{"Panic", "Index", "PanicStream"} {
		_, _, err := call(t, conn, method, []byte("x"))
		require.Equal(t, codes.Internal, status.Code(err), method)
		require.Equal(t, "internal error", status.Convert(err).Message())
	}
	_, _, err := call(t, conn, "Echo", nil)
	require.NoError(t, err)
	require.NotContains(t, s.log.String(), "what a client sent")
	require.Contains(t, s.log.String(), "slice bounds out of range")
	// The observer is outside the recovery: the call's own line has its code.
	requireLogged(t, s, "/test.Service/Panic", "Internal")
}

// requireLogged finds the line of a call.
func requireLogged(t *testing.T, s *running, method, code string) {
	t.Helper()
	for line := range strings.Lines(s.log.String()) {
		var call struct{ Msg, Method, Code string }
		require.NoError(t, json.Unmarshal([]byte(line), &call))
		if call.Msg == "call" && call.Method == method {
			require.Equal(t, code, call.Code)
			return
		}
	}
	require.Fail(t, "no line for the call", s.log.String())
}

func TestTheLogHasTheCauseOfOurFailuresOnly(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		logged bool
	}{
		"ours":         {fault.Wrap(fault.Unavailable, errors.New("connection refused"), "the database is away"), true},
		"the client's": {fault.Invalidf(fault.NoReason, "account refused is unknown"), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, patient, failing(c.err))
			_, _, err := call(t, dial(t, s.address), "Fail", nil)
			require.Error(t, err)
			require.NoError(t, s.stop())
			require.Equal(t, c.logged, strings.Contains(s.log.String(), "refused"))
		})
	}
}

// A caller that goes away while it is sent to is not a failure of ours.
func TestACallerThatLeavesIsNotLogged(t *testing.T) {
	ended := make(chan error, 1)
	s := serve(t, patient, rpc.Method{Name: "Stream", ClientStreams: true, Stream: func(stream grpc.ServerStream) error {
		for {
			if err := stream.SendMsg(rpc.FrameOf([]byte("more"))); err != nil {
				ended <- err
				return err
			}
		}
	}})
	conn := dial(t, s.address)
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Service/Stream")
	require.NoError(t, err)
	require.NoError(t, stream.RecvMsg(&rpc.Frame{}))
	require.NoError(t, conn.Close())
	require.Error(t, <-ended)
	require.NoError(t, s.stop())
	require.Empty(t, s.log.String())
}

func TestOnlyAnUnavailableOfItsOwnIsPushedBack(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		pushback []string
	}{
		"a dependency is away": {fault.Errorf(fault.Unavailable, "the chain is away"), []string{rpc.PushbackNever}},
		"the server drains":    {rpc.Draining(), []string{rpc.PushbackNow}},
		"invalid":              {fault.Invalidf(fault.NoReason, "wrong"), nil},
		"exhausted":            {fault.Errorf(fault.Exhausted, "slow"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, patient, failing(c.err))
			_, trailer, err := call(t, dial(t, s.address), "Fail", nil)
			require.Equal(t, rpc.Status(c.err).Code(), status.Code(err))
			require.Equal(t, rpc.Status(c.err).Message(), status.Convert(err).Message())
			require.Equal(t, c.pushback, trailer.Get(rpc.Pushback))
		})
	}
}

func TestACallWithoutARequestIsAnError(t *testing.T) {
	s := serve(t, patient, rpc.Method{Name: "Echo", Unary: echo})
	stream, err := dial(t, s.address).NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Service/Echo")
	require.NoError(t, err)
	require.NoError(t, stream.CloseSend())
	require.Equal(t, codes.Internal, status.Code(stream.RecvMsg(&rpc.Frame{})))
}

func TestADrainEndsStreamsAndFinishesUnaryCalls(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, patient,
		rpc.Method{Name: "Wait", Unary: func(context.Context, []byte) (*rpc.Frame, error) {
			entered <- struct{}{}
			<-goOn
			return rpc.FrameOf([]byte("done")), nil
		}},
		rpc.Method{Name: "Stream", ClientStreams: true, Stream: func(stream grpc.ServerStream) error {
			entered <- struct{}{}
			<-stream.Context().Done()
			return stream.Context().Err()
		}})
	conn := dial(t, s.address)
	unary := make(chan error, 1)
	go func() {
		response, _, err := call(t, conn, "Wait", nil)
		if err == nil && string(response) != "done" {
			err = errors.New("another response")
		}
		unary <- err
	}()
	<-entered
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Service/Stream")
	require.NoError(t, err)
	<-entered
	watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{Service: "test.Service"})
	require.NoError(t, err)
	health, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, health.GetStatus())

	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	err = stream.RecvMsg(&rpc.Frame{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, []string{rpc.PushbackNow}, stream.Trailer().Get(rpc.Pushback))
	health, err = watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_NOT_SERVING, health.GetStatus())
	for err == nil {
		_, err = watch.Recv()
	}
	require.Equal(t, codes.Unavailable, status.Code(err), "a watcher must not hold up the drain")
	select {
	case <-stopped:
		require.Fail(t, "the unary call was not waited for")
	default:
	}
	close(goOn)
	require.NoError(t, <-unary)
	require.NoError(t, <-stopped)
	require.Empty(t, s.log.String(), "a stream that ends with its server is no failure")
}

func TestADrainIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		heeds bool // the handler heeds the end of its context
		fails bool
	}{
		"a handler that heeds its context": {true, false},
		"a stuck handler":                  {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			entered, free := make(chan struct{}), make(chan struct{})
			s := serve(t, rpc.Config{DrainTimeout: 20 * time.Millisecond, StopTimeout: 300 * time.Millisecond},
				rpc.Method{Name: "Wait", Unary: func(ctx context.Context, _ []byte) (*rpc.Frame, error) {
					close(entered)
					if c.heeds {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					<-free
					return &rpc.Frame{}, nil
				}})
			ended := make(chan struct{})
			conn := dial(t, s.address)
			go func() {
				_, _, _ = call(t, conn, "Wait", nil)
				close(ended)
			}()
			<-entered
			err := s.stop()
			require.Equal(t, c.fails, err != nil, err)
			close(free)
			<-ended
		})
	}
}

func TestDialSpreadsCallsOverServingInstances(t *testing.T) {
	name := func(name string) rpc.Method {
		return rpc.Method{Name: "Name", Unary: func(context.Context, []byte) (*rpc.Frame, error) { return rpc.FrameOf([]byte(name)), nil }}
	}
	a, b := serve(t, patient, name("a")), serve(t, patient, name("b"))
	conn := dial(t, a.address+", "+b.address)
	seen := func() string {
		got, _, err := call(t, conn, "Name", nil)
		require.NoError(t, err)
		return string(got)
	}
	awaitBoth := func() {
		names := map[string]bool{}
		require.Eventually(t, func() bool { names[seen()] = true; return len(names) == 2 }, soon, time.Millisecond)
	}
	awaitBoth()
	a.SetServing(false) // an instance that says it does not serve is left out
	require.Eventually(t, func() bool {
		for range 20 {
			if seen() != "b" {
				return false
			}
		}
		return true
	}, soon, time.Millisecond)
	a.SetServing(true)
	awaitBoth()
	require.NoError(t, a.stop())
	require.NoError(t, b.stop())
	require.Eventually(t, func() bool { return conn.GetState() != connectivity.Ready }, soon, time.Millisecond)
}

func TestDialRefusesWhatIsNoEndpoint(t *testing.T) {
	for _, endpoints := range []string{"", "host", "host:1,", ":5051", "host:"} {
		_, err := rpc.Dial(endpoints, rpc.DialDeps{})
		require.ErrorContains(t, err, "is not host:port", endpoints)
	}
}

func TestConfigNamesItsVariables(t *testing.T) {
	require.NoError(t, rpc.Config{StopTimeout: 1, AnswerTimeout: 1}.Validate())
	err := rpc.Config{DrainTimeout: -1}.Validate()
	require.ErrorContains(t, err, "XMTP_DRAIN_TIMEOUT")
	require.ErrorContains(t, err, "XMTP_STOP_TIMEOUT")
}
