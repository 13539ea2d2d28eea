package rpc_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/rpc/rpctest"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/metertest"
)

const mib = 1 << 20

// answering is a server whose methods answer with so many bytes: Plain with a frame
// that nobody counted before, Counted with an Answer.
type answering struct {
	*running
	meter  *metertest.Meter
	budget *budget.Budget
	sent   atomic.Int64 // runs of Answered
}

func serveAnswers(t *testing.T, timeout time.Duration) *answering {
	t.Helper()
	a := &answering{budget: budget.New(64*mib, 0), meter: metertest.New(t)}
	count := func(request []byte) int { return int(request[0])<<16 | int(request[1])<<8 | int(request[2]) }
	methods := []rpc.Method{
		{Name: "Plain", Answered: func() { a.sent.Add(1) }, Unary: func(_ context.Context, request []byte) (*rpc.Frame, error) {
			return rpc.FrameOf(make([]byte, count(request))), nil
		}},
		{Name: "Counted", Unary: func(ctx context.Context, request []byte) (*rpc.Frame, error) {
			answer := rpc.Rooms{Budget: a.budget, Patience: soon}.Answer()
			if err := answer.Take(ctx, 8*mib); err != nil {
				return nil, err
			}
			content := make([]byte, count(request))
			for i := range content {
				content[i] = byte(i % 251)
			}
			answer.Write(content)
			return answer.Frame(), nil
		}},
	}
	config := patient
	config.AnswerTimeout = timeout
	a.running = serveWith(t, config, rpc.ServerDeps{Metrics: a.meter.Metrics, Responses: a.budget}, methods...)
	return a
}

// ended is how often something was ended for an answer that was not taken.
func (a *answering) ended(what string) int64 {
	return a.meter.Count("xmtp_answers_not_taken", attribute.String("ended", what))
}

func sized(n int) []byte { return []byte{byte(n >> 16), byte(n >> 8), byte(n)} }

func (a *answering) awaitUsed(t *testing.T, used int64) {
	t.Helper()
	require.Eventually(t, func() bool { return a.budget.Used() == used }, soon, time.Millisecond, "%d bytes are owed, expected %d", a.budget.Used(), used)
}

var answerSizes = []int{0, 1, 2047, 2048, 2049, 64 << 10, 64<<10 + 1, 256<<10 + 1, 3 * mib}

// What an answer has taken comes back when it has left, whatever its length.
func TestAnAnswerIsOwedUntilItHasLeft(t *testing.T) {
	a := serveAnswers(t, time.Hour)
	conn, err := grpc.NewClient(a.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rpc.Codec{}), grpc.MaxCallRecvMsgSize(8*mib)))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	calls := int64(0)
	for _, size := range answerSizes {
		for _, method := range []string{"Plain", "Counted"} {
			answer, _, err := call(t, conn, method, sized(size))
			require.NoError(t, err)
			require.Len(t, answer, size)
			if method == "Counted" {
				for i, b := range answer {
					if b != byte(i%251) {
						t.Fatalf("byte %d of %d is %d", i, size, b)
					}
				}
			} else {
				calls++
			}
			a.awaitUsed(t, 0)
		}
	}
	require.Equal(t, calls, a.sent.Load())
}

// Invariant I9: a peer that takes nothing ends with its connection.
func TestAConnectionThatTakesNothingIsClosed(t *testing.T) {
	for _, method := range []string{"Plain", "Counted"} {
		for _, size := range answerSizes[1:] {
			a := serveAnswers(t, 100*time.Millisecond)
			m := rpctest.Connect(t, a.address)
			for range 5 {
				m.Call("/test.Service/"+method, sized(size))
			}
			m.AwaitEnd()
			a.awaitUsed(t, 0)
			require.EqualValues(t, 1, a.ended("connection"))
			require.NoError(t, a.stop())
		}
	}
}

// Of a gateway's calls only the one ends whose answer is not taken.
func TestACallWhoseAnswerStandsStillIsEnded(t *testing.T) {
	a := serveAnswers(t, 2*time.Second)
	conn := dial(t, a.address)
	for _, method := range []string{"Plain", "Counted"} {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/test.Service/"+method)
		require.NoError(t, err)
		require.NoError(t, stream.SendMsg(rpc.FrameOf(sized(mib))))
		require.NoError(t, stream.CloseSend())
		_, err = stream.Header()
		require.NoError(t, err)
		other := make(chan error, 1)
		go func() {
			for {
				_, _, err := call(t, conn, "Plain", sized(1000))
				select {
				case <-stream.Context().Done():
					other <- err
					return
				default:
				}
				if err != nil {
					other <- err
					return
				}
			}
		}()
		a.awaitUsed(t, 0)
		var frame rpc.Frame
		require.Error(t, stream.RecvMsg(&frame))
		require.NoError(t, <-other, "the connection went with the call")
	}
	require.EqualValues(t, 2, a.ended("call"))
	require.Zero(t, a.ended("connection"))
	require.Contains(t, a.log.String(), codes.DeadlineExceeded.String())
}

// A call that ends while its answer stands still gives it back at once.
func TestAnAnswerOfAnEndedCallIsGivenBack(t *testing.T) {
	a := serveAnswers(t, time.Hour)
	t.Run("reset", func(t *testing.T) {
		m := rpctest.Connect(t, a.address)
		for _, size := range answerSizes[1:] {
			stream := m.Call("/test.Service/Counted", sized(size))
			require.Eventually(t, func() bool { return a.budget.Used() > 0 }, soon, time.Millisecond)
			m.Reset(stream)
			a.awaitUsed(t, 0)
		}
	})
	t.Run("connection ends", func(t *testing.T) {
		m := rpctest.Connect(t, a.address)
		for _, size := range answerSizes[1:] {
			m.Call("/test.Service/Counted", sized(size))
			m.Call("/test.Service/Plain", sized(size))
		}
		require.Eventually(t, func() bool { return a.budget.Used() > 6*mib }, soon, time.Millisecond)
		require.NoError(t, m.Conn.Close())
		a.awaitUsed(t, 0)
	})
	t.Run("deadline", func(t *testing.T) {
		conn := dial(t, a.address)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/test.Service/Counted")
		require.NoError(t, err)
		require.NoError(t, stream.SendMsg(rpc.FrameOf(sized(mib))))
		require.NoError(t, stream.CloseSend())
		_, err = stream.Header()
		require.NoError(t, err)
		a.awaitUsed(t, 0)
		require.Equal(t, codes.DeadlineExceeded, status.Code(stream.RecvMsg(&rpc.Frame{})))
	})
}

// As it leaves, a long answer gives back what has left.
func TestALongAnswerIsGivenBackInPieces(t *testing.T) {
	a := serveAnswers(t, time.Hour)
	m := rpctest.Connect(t, a.address)
	stream := m.Call("/test.Service/Counted", sized(4*mib))
	a.awaitUsed(t, 4*mib)
	m.Allow(stream, 5+3*mib)
	m.Discard()
	a.awaitUsed(t, mib)
}

// A reset that overtakes its answer, again and again: nothing is owed in the end.
func TestResetsOfAllMomentsGiveAllBack(t *testing.T) {
	a := serveAnswers(t, soon/2)
	m := rpctest.Connect(t, a.address)
	m.Discard()
	for range 2000 {
		m.Reset(m.Call("/test.Service/Counted", sized(100<<10)))
	}
	a.awaitUsed(t, 0)
}
