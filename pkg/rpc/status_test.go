package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

func TestEveryKindHasItsCode(t *testing.T) {
	for kind, code := range map[fault.Kind]codes.Code{
		fault.Broken: codes.Internal, fault.Invalid: codes.InvalidArgument, fault.TooLong: codes.OutOfRange,
		fault.HeadMoved: codes.Aborted, fault.Unavailable: codes.Unavailable, fault.Late: codes.DeadlineExceeded,
		fault.Exhausted: codes.ResourceExhausted, fault.Unimplemented: codes.Unimplemented, fault.Cancelled: codes.Canceled,
	} {
		got := rpc.Status(fmt.Errorf("read a page: %w", fault.Wrap(kind, errors.New("secret"), "what was wrong")))
		require.Equal(t, code, got.Code())
		require.Equal(t, "what was wrong", got.Message(), "the cause and the wrapping are for logs")
		require.Empty(t, got.Details())
	}
	require.Nil(t, rpc.Status(nil))
	require.Equal(t, codes.Canceled, rpc.Status(context.Canceled).Code())
	require.Equal(t, codes.DeadlineExceeded, rpc.Status(fmt.Errorf("query: %w", context.DeadlineExceeded)).Code())
	unclassified := rpc.Status(errors.New("password=hunter2"))
	require.Equal(t, codes.Internal, unclassified.Code())
	require.NotContains(t, unclassified.Message(), "hunter2")
}

func TestTheTextOfAStatusIsBounded(t *testing.T) {
	exact := strings.Repeat("x", 1024)
	require.Equal(t, exact, rpc.Status(fault.Invalidf(fault.TooLarge, "%s", exact)).Message())
	for _, long := range []string{exact + "x", strings.Repeat("é", 513), strings.Repeat("\xffx", 1000)} {
		got := rpc.Status(fault.Invalidf(fault.TooLarge, "%s", long))
		require.LessOrEqual(t, len(got.Message()), 1024)
		require.True(t, utf8.ValidString(got.Message()))
		require.True(t, strings.HasSuffix(got.Message(), "…"))
		require.Equal(t, got.Message(), got.Details()[0].(*backendv1.PublishError).GetMessage())
	}
}

// Proves API-150.
func TestAStatusFromFurtherDownPassesUnchanged(t *testing.T) {
	passed, err := status.New(codes.DataLoss, "as it was").WithDetails(&backendv1.PublishError{Message: "detail"})
	require.NoError(t, err)
	require.Equal(t, passed, rpc.Status(passed.Err()))
}

// Proves API-047.
func TestAnInvalidPublishHasADetail(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		index *uint32
		text  string
	}{
		"an envelope":       {fault.Invalidf(fault.TooLarge, "too large").At(7), new(uint32(7)), "too large"},
		"the first":         {fault.Invalidf(fault.TooLarge, "too large").At(0), new(uint32(0)), "too large"},
		"the whole request": {fault.Invalidf(fault.TooLarge, "too large"), nil, "too large"},
		"input that is no UTF-8": {
			fault.Invalidf(fault.TooLarge, "account %s is unknown", "a\xff\xfeb"), nil, "account a\uFFFDb is unknown",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := rpc.Status(c.err)
			require.Equal(t, codes.InvalidArgument, got.Code())
			require.Equal(t, c.text, got.Message())
			require.Len(t, got.Details(), 1)
			detail := got.Details()[0].(*backendv1.PublishError)
			require.Equal(t, backendv1.PublishError_REASON_TOO_LARGE, detail.GetReason())
			require.Equal(t, c.text, detail.GetMessage())
			require.Equal(t, c.index, detail.Index)
		})
	}
}
