package wallet

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/caip"
)

// Config is what the verifier needs to know. The names in the tags get the
// prefix of the process, XMTP_.
type Config struct {
	// Chains has one JSON-RPC endpoint per chain; without any, every
	// verification is unavailable.
	Chains Endpoints `env:"CHAINS"`
	// Timeout bounds one verification: its calls and the wait for a free place. It
	// also bounds what one publish waits for chains in all.
	Timeout time.Duration `env:"CHAIN_TIMEOUT" envDefault:"5s"`
	// MaxBlockAge is how much older than the newest block the block of a contract
	// wallet's signature may be when an identity update is published (IDENT-062); 0
	// takes any block and asks no chain for blocks.
	MaxBlockAge time.Duration `env:"SCW_MAX_BLOCK_AGE" envDefault:"1800s"`
	// MaxCalls bounds the calls in flight to one chain.
	MaxCalls int `env:"CHAIN_MAX_CALLS" envDefault:"32"`
	// CacheEntries bounds the remembered verdicts, about 200 bytes each.
	CacheEntries int `env:"CHAIN_CACHE_ENTRIES" envDefault:"10000"`
}

// The ranges of the settings.
const (
	maxTimeout      = time.Minute
	maxBlockAge     = 365 * 24 * time.Hour
	maxCalls        = 10_000
	maxCacheEntries = 10_000_000
)

// Validate checks the ranges and reports all mistakes at once, each with the
// name of its variable and without any endpoint.
func (c Config) Validate() error {
	var errs []error
	for _, chain := range c.Chains.IDs() {
		if err := caip.CheckEIP155(chain); err != nil {
			errs = append(errs, fmt.Errorf("XMTP_CHAINS: %w", err))
		}
		if err := c.Chains[chain].check(); err != nil {
			errs = append(errs, fmt.Errorf("XMTP_CHAINS: the endpoint of %s %w", chain, err))
		}
	}
	if c.Timeout <= 0 || c.Timeout > maxTimeout {
		errs = append(errs, fmt.Errorf("XMTP_CHAIN_TIMEOUT is %s, expected more than 0 and at most %s", c.Timeout, maxTimeout))
	}
	if c.MaxBlockAge < 0 || c.MaxBlockAge > maxBlockAge || c.MaxBlockAge%time.Second != 0 {
		errs = append(errs, fmt.Errorf("XMTP_SCW_MAX_BLOCK_AGE is %s, expected whole seconds, 0 (any block) to %s", c.MaxBlockAge, maxBlockAge))
	}
	if c.MaxCalls < 1 || c.MaxCalls > maxCalls {
		errs = append(errs, fmt.Errorf("XMTP_CHAIN_MAX_CALLS is %d, expected 1 to %d", c.MaxCalls, maxCalls))
	}
	if c.CacheEntries < 1 || c.CacheEntries > maxCacheEntries {
		errs = append(errs, fmt.Errorf("XMTP_CHAIN_CACHE_ENTRIES is %d, expected 1 to %d", c.CacheEntries, maxCacheEntries))
	}
	return errors.Join(errs...)
}

// Endpoints maps a CAIP-2 chain id, such as eip155:1, to its endpoint.
type Endpoints map[string]Endpoint

// UnmarshalText reads `eip155:1=https://…,eip155:8453=https://…`. Space around
// an entry is ignored. A comma inside a URL has to be written as %2C. An error
// names the entry by its place, since any part of it may hold a secret.
func (e *Endpoints) UnmarshalText(text []byte) error {
	const expected = "expected entries like eip155:1=https://host, separated by commas"
	parsed := Endpoints{}
	if strings.TrimSpace(string(text)) == "" {
		*e = parsed
		return nil
	}
	for i, entry := range strings.Split(string(text), ",") {
		chain, address, found := strings.Cut(strings.TrimSpace(entry), "=")
		if !found {
			return fmt.Errorf("XMTP_CHAINS: entry %d has no '=', %s", i+1, expected)
		}
		endpoint := Endpoint(strings.TrimSpace(address))
		chain = strings.TrimSpace(chain)
		if err := caip.CheckEIP155(chain); err != nil {
			return fmt.Errorf("XMTP_CHAINS: entry %d: %w; %s", i+1, err, expected)
		}
		if err := endpoint.check(); err != nil {
			return fmt.Errorf("XMTP_CHAINS: entry %d: the endpoint %w; %s", i+1, err, expected)
		}
		if _, twice := parsed[chain]; twice {
			return fmt.Errorf("XMTP_CHAINS: entry %d repeats chain %s, expected one endpoint for a chain", i+1, chain)
		}
		parsed[chain] = endpoint
	}
	*e = parsed
	return nil
}

// IDs returns the chain ids in order.
func (e Endpoints) IDs() []string { return slices.Sorted(maps.Keys(e)) }

// String lists the chains without their endpoints.
func (e Endpoints) String() string { return strings.Join(e.IDs(), ",") }

// LogValue lists the chains without their endpoints.
func (e Endpoints) LogValue() slog.Value { return slog.StringValue(e.String()) }

// hidden stands for an endpoint wherever one would be printed.
const hidden = "[hidden]"

// Endpoint is the URL of a chain's JSON-RPC server. It usually holds an access
// key, so every way to print it hides it.
type Endpoint string

// String hides the URL.
func (Endpoint) String() string { return hidden }

// GoString hides the URL from %#v.
func (Endpoint) GoString() string { return hidden }

// MarshalText hides the URL from JSON and the like.
func (Endpoint) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue hides the URL from slog.
func (Endpoint) LogValue() slog.Value { return slog.StringValue(hidden) }

// check requires an absolute HTTP URL. Its errors say nothing of the URL, which
// those of net/url would quote.
func (e Endpoint) check() error {
	parsed, err := url.Parse(string(e))
	switch {
	case err != nil || parsed.Host == "":
		return errors.New("is not a URL with a host")
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		return errors.New("has another scheme than http or https")
	default:
		return nil
	}
}
