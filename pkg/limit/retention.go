package limit

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Retention is how long stored envelopes are kept at least (API-021): the
// distance from server_ns to expiry_ns. Identity updates, commit-log entries,
// commits and proposals never expire.
type Retention struct {
	GroupMessage time.Duration `env:"RETENTION_GROUP_MESSAGE" envDefault:"2160h"` // how long application messages of groups are kept at least
	Welcome      time.Duration `env:"RETENTION_WELCOME"       envDefault:"2160h"` // how long welcomes are kept at least
	KeyPackage   time.Duration `env:"RETENTION_KEY_PACKAGE"   envDefault:"2160h"` // how long key packages are kept at least
}

// DefaultRetention is three months, by which a fixed 90 days are meant (API-021).
func DefaultRetention() Retention {
	const quarter = 90 * 24 * time.Hour
	return Retention{GroupMessage: quarter, Welcome: quarter, KeyPackage: quarter}
}

// maxRetention keeps expiry_ns below INT64_MAX for two centuries to come.
const maxRetention = 100 * 365 * 24 * time.Hour

// Validate refuses what is not a positive number of whole seconds, the unit in
// which clients read it, and what would overflow an expiry.
func (r Retention) Validate() error {
	var errs []error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"RETENTION_GROUP_MESSAGE", r.GroupMessage},
		{"RETENTION_WELCOME", r.Welcome},
		{"RETENTION_KEY_PACKAGE", r.KeyPackage},
	} {
		if d.value <= 0 || d.value > maxRetention || d.value%time.Second != 0 {
			errs = append(errs, fmt.Errorf("XMTP_%s is %v, expected whole seconds between 1s and %v", d.name, d.value, maxRetention))
		}
	}
	return errors.Join(errs...)
}

// Expiry adds a retention to a time, both in nanoseconds. It is not ok if the
// sum does not fit.
func Expiry(serverNS int64, retention time.Duration) (expiryNS int64, ok bool) {
	if serverNS < 0 || int64(retention) > math.MaxInt64-serverNS {
		return 0, false
	}
	return serverNS + int64(retention), true
}
