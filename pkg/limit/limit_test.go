package limit_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/limit"
)

// Proves API-131.
func TestDefaultsOfTheEnvironmentAreTheLimitsOfTheAPI(t *testing.T) {
	parsed, err := env.ParseAsWithOptions[limit.Config](env.Options{Environment: map[string]string{}})
	require.NoError(t, err)
	require.Equal(t, limit.Default(), parsed)
	require.NoError(t, parsed.Validate())
}

// Proves API-131.
func TestEveryLimitRefusesZeroByName(t *testing.T) {
	kind := reflect.TypeFor[limit.Config]()
	for i := range kind.NumField() {
		name := kind.Field(i).Tag.Get("env")
		t.Run(name, func(t *testing.T) {
			config := limit.Default()
			reflect.ValueOf(&config).Elem().Field(i).SetZero()
			require.ErrorContains(t, config.Validate(), "XMTP_"+name)
		})
	}
}

// Proves API-135.
func TestRelationsAtTheirBoundAndOnePast(t *testing.T) {
	cases := map[string]struct {
		at, past func(*limit.Config)
		names    string
	}{
		"request ceiling": {
			func(c *limit.Config) { c.MaxRequestBytes = 25 << 20 }, func(c *limit.Config) { c.MaxRequestBytes = 25<<20 + 1 }, "XMTP_MAX_REQUEST_BYTES",
		},
		"response ceiling": {
			func(c *limit.Config) { c.MaxResponseBytes = 25 << 20 }, func(c *limit.Config) { c.MaxResponseBytes = 25<<20 + 1 }, "XMTP_MAX_RESPONSE_BYTES",
		},
		"default query limit": {
			func(c *limit.Config) { c.DefaultQueryLimit = 1000 }, func(c *limit.Config) { c.DefaultQueryLimit = 1001 }, "XMTP_DEFAULT_QUERY_LIMIT",
		},
		"an envelope fits a frame": {
			func(c *limit.Config) { c.MaxEnvelopeBytes = 2<<20 - 256 }, func(c *limit.Config) { c.MaxEnvelopeBytes = 2<<20 - 255 }, "XMTP_MAX_ENVELOPE_BYTES",
		},
		"an envelope fits a response": {
			func(c *limit.Config) { c.MaxResponseBytes = 1<<20 + 256 }, func(c *limit.Config) { c.MaxResponseBytes = 1<<20 + 255 }, "XMTP_MAX_RESPONSE_BYTES",
		},
		"an envelope fits a request": {
			func(c *limit.Config) { c.MaxRequestBytes = 1<<20 + 4 }, func(c *limit.Config) { c.MaxRequestBytes = 1<<20 + 3 }, "XMTP_MAX_REQUEST_BYTES",
		},
		"keepalive fits its field": {
			func(c *limit.Config) { c.KeepaliveInterval = (1<<32 - 1) * time.Millisecond }, func(c *limit.Config) { c.KeepaliveInterval = (1 << 32) * time.Millisecond }, "XMTP_KEEPALIVE_INTERVAL",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			at, past := limit.Default(), limit.Default()
			c.at(&at)
			c.past(&past)
			require.NoError(t, at.Validate())
			require.ErrorContains(t, past.Validate(), c.names)
		})
	}
}
