package publisher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheTimeLimitGrowsWithTheEnvelopes(t *testing.T) {
	for envelopes, want := range map[int]time.Duration{
		0: 5 * time.Second, 1: 5*time.Second + 40*time.Microsecond, 25_000: 6 * time.Second,
		1_374_999: time.Minute - 40*time.Microsecond, 1_375_000: time.Minute, 1_375_001: time.Minute, 13_000_000: time.Minute,
	} {
		require.Equal(t, want, limitOf(envelopes), "%d envelopes", envelopes)
	}
}
