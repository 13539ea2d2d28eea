package stream

import (
	"math"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// bucket is a token bucket (API-107), full at first. It keeps the one moment at
// which it would be full again.
type bucket struct {
	period time.Duration // per token
	burst  time.Duration // all tokens
	full   time.Time
}

func newBucket(perSecond, burst uint32) bucket {
	period := time.Second / time.Duration(perSecond)
	return bucket{period: period, burst: period * time.Duration(min(uint64(burst), math.MaxUint32))}
}

// take removes a token. It is false when there is none.
func (b *bucket) take(now time.Time) bool {
	from := b.full
	if from.Before(now) {
		from = now
	}
	next := from.Add(b.period)
	if next.Sub(now) > b.burst {
		return false
	}
	b.full = next
	return true
}

func exhausted(what string, perSecond, burst uint32) error {
	return fault.Errorf(fault.Exhausted, "too many %s frames on this stream, expected at most %d a second after a burst of %d", what, perSecond, burst)
}
