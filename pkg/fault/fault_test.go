package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

func TestOfFindsTheKindOfEveryError(t *testing.T) {
	cause := errors.New("connection refused to 10.0.0.1")
	cases := map[string]struct {
		err  error
		kind fault.Kind
		text string
	}{
		"classified":       {fault.Invalidf(fault.TooLarge, "has %d bytes", 3), fault.Invalid, "has 3 bytes"},
		"classified below": {fmt.Errorf("read history: %w", fault.Wrap(fault.Unavailable, cause, "the database is away")), fault.Unavailable, "the database is away"},
		"cancelled":        {fmt.Errorf("query: %w", context.Canceled), fault.Cancelled, "the caller cancelled the request"},
		"deadline":         {fmt.Errorf("query: %w", context.DeadlineExceeded), fault.Late, "the request took longer than its time limit"},
		"unknown":          {cause, fault.Broken, "internal error"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.kind, fault.KindOf(c.err))
			require.Equal(t, c.text, fault.Of(c.err).Text())
		})
	}
	require.Nil(t, fault.Of(nil))
}

func TestAtKeepsTheOriginal(t *testing.T) {
	whole := fault.Invalidf(fault.InvalidSignature, "wrong signer")
	at := whole.At(7)
	require.Equal(t, 7, at.Index)
	require.Equal(t, fault.WholeRequest, whole.Index)
	require.Equal(t, whole.Reason, at.Reason)
}

func TestCauseIsForLogsOnly(t *testing.T) {
	cause := errors.New("password=secret")
	err := fault.Wrap(fault.Unavailable, cause, "the database is away")
	require.ErrorIs(t, err, cause)
	require.NotContains(t, err.Text(), "secret")
	require.Contains(t, err.Error(), "secret")
}
