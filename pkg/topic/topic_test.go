package topic_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

var lengths = map[topic.Kind]int{
	topic.GroupMessage: 16, topic.Welcome: 32, topic.IdentityUpdate: 32, topic.KeyPackage: 32, topic.CommitLog: 16,
}

// Proves API-002.
func TestEveryKindTakesItsLengthOnly(t *testing.T) {
	for kind, want := range lengths {
		for length := range 40 {
			t.Run(fmt.Sprintf("%s/%d", kind, length), func(t *testing.T) {
				identifier := bytes.Repeat([]byte{7}, length)
				made, makeErr := topic.New(kind, identifier)
				parsed, parseErr := topic.Parse(append([]byte{byte(kind)}, identifier...))
				if length != want {
					require.Equal(t, fault.MalformedPayload, fault.Of(makeErr).Reason)
					require.Equal(t, fault.Invalid, fault.KindOf(parseErr))
					require.Equal(t, fault.NoReason, fault.Of(parseErr).Reason)
					return
				}
				require.NoError(t, makeErr)
				require.NoError(t, parseErr)
				require.Equal(t, made, parsed)
				require.Equal(t, kind, parsed.Kind())
				require.Equal(t, string(identifier), parsed.Identifier())
			})
		}
	}
}

// Proves API-003.
func TestUnknownKindsAndNothingAreInvalid(t *testing.T) {
	for _, raw := range [][]byte{nil, {5}, append([]byte{5}, make([]byte, 32)...), append([]byte{0xff}, make([]byte, 16)...)} {
		_, err := topic.Parse(raw)
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%x", raw)
	}
}

// Proves API-004.
func TestCursorBounds(t *testing.T) {
	for _, good := range []uint64{0, 1, math.MaxInt64} {
		cursor, err := topic.ParseCursor(good)
		require.NoError(t, err)
		require.Equal(t, good, uint64(cursor))
	}
	for _, bad := range []uint64{math.MaxInt64 + 1, math.MaxUint64} {
		_, err := topic.ParseCursor(bad)
		require.Equal(t, fault.Invalid, fault.KindOf(err))
	}
}
