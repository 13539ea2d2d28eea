package wallet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/stretchr/testify/require"
)

func parseConfig(chains string) (Config, error) {
	return env.ParseAsWithOptions[Config](env.Options{
		Prefix:      "XMTP_",
		Environment: map[string]string{"XMTP_CHAINS": chains},
	})
}

func TestConfigFromTheEnvironment(t *testing.T) {
	cfg, err := parseConfig("eip155:8453=https://base.example/v2/key=?a=b, eip155:1=http://user:password@localhost:8545\n")
	require.NoError(t, err)
	require.NoError(t, cfg.Validate())
	require.Equal(t, Config{
		Chains: Endpoints{
			"eip155:8453": "https://base.example/v2/key=?a=b",
			"eip155:1":    "http://user:password@localhost:8545",
		},
		Timeout:      5 * time.Second,
		MaxBlockAge:  1800 * time.Second,
		MaxCalls:     32,
		CacheEntries: 10_000,
	}, cfg)
}

func TestNoChains(t *testing.T) {
	for _, text := range []string{"", " "} {
		cfg, err := parseConfig(text)
		require.NoError(t, err)
		require.NoError(t, cfg.Validate())
		require.Empty(t, cfg.Chains.IDs())
	}
}

func TestMistakesInChains(t *testing.T) {
	for text, want := range map[string]string{
		"https://secret.example":           "entry 1 has no '='",
		"eip155:1":                         "entry 1 has no '='",
		"eip155:1=https://secret.example,": "entry 2 has no '='",
		"eip155:1=https://secret.example,,eip155:10=https://b": "entry 2 has no '='",
		"eip155:1=":                                                       "entry 1: the endpoint is not a URL with a host",
		"eip155:1=secret.example":                                         "entry 1: the endpoint is not a URL with a host",
		"eip155:1=https://":                                               "entry 1: the endpoint is not a URL with a host",
		"eip155:1=https://secret.example/%zz":                             "entry 1: the endpoint is not a URL with a host",
		"eip155:1=wss://secret.example":                                   "entry 1: the endpoint has another scheme than http or https",
		"1=https://secret.example":                                        "entry 1: the chain is not eip155:",
		"eip155:01=https://secret.example":                                "entry 1: the chain is not eip155:",
		"eip155:=https://secret.example":                                  "entry 1: the chain is not eip155:",
		"eip155:18446744073709551616=https://secret.example":              "entry 1: the chain is not eip155:",
		"solana:1=https://secret.example":                                 "entry 1: the chain is not eip155:",
		"eip155:1=https://secret.example,eip155:1=https://secret.example": "entry 2 repeats chain eip155:1",
	} {
		_, err := parseConfig(text)
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, "XMTP_CHAINS")
		require.ErrorContains(t, err, "expected")
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := parseConfig("eip155:18446744073709551615=https://secret.example")
	require.NoError(t, err)
}

// Each bound at its value and one past it.
func TestRangesOfTheSettings(t *testing.T) {
	valid := Config{Timeout: time.Second, MaxCalls: 1, CacheEntries: 1}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"smallest":           {func(c *Config) { c.Timeout, c.MaxCalls, c.CacheEntries = 1, 1, 1 }, ""},
		"largest":            {func(c *Config) { c.Timeout, c.MaxCalls, c.CacheEntries = maxTimeout, maxCalls, maxCacheEntries }, ""},
		"time-out too small": {func(c *Config) { c.Timeout = 0 }, "XMTP_CHAIN_TIMEOUT is 0s, expected"},
		"time-out too large": {func(c *Config) { c.Timeout = maxTimeout + 1 }, "XMTP_CHAIN_TIMEOUT"},
		"calls too few":      {func(c *Config) { c.MaxCalls = 0 }, "XMTP_CHAIN_MAX_CALLS is 0, expected"},
		"calls too many":     {func(c *Config) { c.MaxCalls = maxCalls + 1 }, "XMTP_CHAIN_MAX_CALLS"},
		"cache too small":    {func(c *Config) { c.CacheEntries = 0 }, "XMTP_CHAIN_CACHE_ENTRIES is 0, expected"},
		"cache too large":    {func(c *Config) { c.CacheEntries = maxCacheEntries + 1 }, "XMTP_CHAIN_CACHE_ENTRIES"},
		"any block":          {func(c *Config) { c.MaxBlockAge = 0 }, ""},
		"oldest block":       {func(c *Config) { c.MaxBlockAge = maxBlockAge }, ""},
		"age below 0":        {func(c *Config) { c.MaxBlockAge = -time.Second }, "XMTP_SCW_MAX_BLOCK_AGE is -1s, expected"},
		"age too large":      {func(c *Config) { c.MaxBlockAge = maxBlockAge + time.Second }, "XMTP_SCW_MAX_BLOCK_AGE"},
		"half seconds":       {func(c *Config) { c.MaxBlockAge = 1500 * time.Millisecond }, "XMTP_SCW_MAX_BLOCK_AGE"},
		"bad chain":          {func(c *Config) { c.Chains = Endpoints{"eip155:01": "http://secret"} }, "XMTP_CHAINS: the chain is not eip155:"},
		"bad endpoint":       {func(c *Config) { c.Chains = Endpoints{"eip155:1": "secret"} }, "XMTP_CHAINS: the endpoint of eip155:1 is not a URL"},
	} {
		cfg := valid
		tc.change(&cfg)
		if tc.want == "" {
			require.NoError(t, cfg.Validate(), name)
			continue
		}
		err := cfg.Validate()
		require.ErrorContains(t, err, tc.want, name)
		require.NotContains(t, err.Error(), "secret")
		_, newErr := New(cfg)
		require.Equal(t, err, newErr, "New refuses what Validate refuses")
	}
}

// Whatever prints a configuration leaves the endpoints out.
func TestEndpointsAreHidden(t *testing.T) {
	cfg, err := parseConfig("eip155:1=https://secret.example/key")
	require.NoError(t, err)
	var printed bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&printed, nil))
	logger.Info("start", "config", cfg, "chains", cfg.Chains, "endpoint", cfg.Chains["eip155:1"])
	logger = slog.New(slog.NewTextHandler(&printed, nil))
	logger.Info("start", "config", cfg, "chains", cfg.Chains, "endpoint", cfg.Chains["eip155:1"])
	for _, value := range []any{cfg, &cfg, cfg.Chains, cfg.Chains["eip155:1"], map[string]string(nil)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			fmt.Fprintf(&printed, verb+"\n", value)
		}
	}
	encoded, err := json.Marshal(cfg)
	require.NoError(t, err)
	printed.Write(encoded)
	require.NotContains(t, printed.String(), "secret")
	require.NotContains(t, printed.String(), fmt.Sprintf("%x", "secret"))
	require.Contains(t, printed.String(), "eip155:1")
}
