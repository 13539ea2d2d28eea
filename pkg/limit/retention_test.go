package limit_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
)

// Proves API-021, API-062.
func TestRetentionDefaultsAreThreeMonths(t *testing.T) {
	loaded, err := config.LoadFrom[limit.Retention](nil)
	require.NoError(t, err)
	require.Equal(t, limit.DefaultRetention(), loaded)
	require.Equal(t, 7_776_000*time.Second, loaded.Welcome)
}

func TestRetentionIsWholePositiveSecondsThatFit(t *testing.T) {
	for name, value := range map[string]string{
		"zero": "0s", "negative": "-1s", "a fraction": "1500ms", "a second too long": "876001h",
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{"XMTP_RETENTION_GROUP_MESSAGE", "XMTP_RETENTION_WELCOME", "XMTP_RETENTION_KEY_PACKAGE"} {
				_, err := config.LoadFrom[limit.Retention](map[string]string{variable: value})
				require.ErrorContains(t, err, variable)
			}
		})
	}
	for _, value := range []string{"1s", "876000h"} {
		_, err := config.LoadFrom[limit.Retention](map[string]string{"XMTP_RETENTION_WELCOME": value})
		require.NoError(t, err)
	}
}

func TestExpiryOverflowIsNoticed(t *testing.T) {
	sum, ok := limit.Expiry(math.MaxInt64-5, 5)
	require.True(t, ok)
	require.Equal(t, int64(math.MaxInt64), sum)
	_, ok = limit.Expiry(math.MaxInt64-4, 5)
	require.False(t, ok)
}
