package gateway_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// What a caller brings about itself raises no alert and fills no log, whatever its
// code; what is ours does both.
func TestWhatACallerBringsAboutIsNoFailureOfOurs(t *testing.T) {
	away := fault.Wrap(fault.Unavailable, errors.New("connection refused"), "the database is away")
	for name, c := range map[string]struct {
		answer  func(context.Context) error
		timeout time.Duration // of the call; 0 is none
		code    codes.Code
		ours    bool
	}{
		"an unknown chain": {answer: func(context.Context) error {
			return fault.Errorf(fault.Unavailable, "the account is on a chain without a verifier").OfCaller()
		}, code: codes.Unavailable},
		"a dependency that is away": {answer: func(context.Context) error { return away }, code: codes.Unavailable, ours: true},
		"a deadline that nobody can meet": {answer: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, timeout: 200 * time.Millisecond, code: codes.DeadlineExceeded},
		"a time limit of our own": {answer: func(context.Context) error {
			return fault.Errorf(fault.Late, "the query took too long")
		}, timeout: time.Minute, code: codes.DeadlineExceeded, ours: true},
	} {
		t.Run(name, func(t *testing.T) {
			role := &fakeRole{query: func(ctx context.Context, _ *backendv1.QueryRequest) (*backendv1.QueryResponse, error) {
				return nil, c.answer(ctx)
			}}
			role.start(t, "")
			log := logtest.New()
			f := startGatewayLogging(t, role, nil, log.Logger)
			_, err := backendv1.NewPublishServiceClient(f.conn).Publish(t.Context(), &backendv1.PublishRequest{})
			require.NoError(t, err, "the connection and the role are ready")
			ctx := t.Context()
			if c.timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.timeout)
				defer cancel()
			}
			_, err = backendv1.NewQueryServiceClient(f.conn).Query(ctx, &backendv1.QueryRequest{})
			require.Equal(t, c.code, status.Code(err))
			method := attribute.String("grpc_method", "Query")
			require.Eventually(t, func() bool { return f.meter.Count("grpc_server_handled", method) == 1 }, soon, time.Millisecond)
			f.stop()
			want := int64(0)
			if c.ours {
				want = 1
			}
			require.Equal(t, want, f.meter.Count("xmtp_call_failures", method))
			if c.ours {
				require.Contains(t, log.String(), `"method":"/xmtp.backend.v1.QueryService/Query"`)
			} else {
				require.NotContains(t, log.String(), "QueryService")
			}
		})
	}
}
