package gateway

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/caip"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

const (
	maxIdentifierBytes = 256
	// maxPublishedBytes bounds the whole answer of GetConfiguration.
	maxPublishedBytes = 64 << 10
)

// PublishedConfig is what GetConfiguration says beside the limits. Nothing else
// of the configuration is ever published: no URL, key, secret or timing.
type PublishedConfig struct {
	// Identifier is the operator's stable name of this deployment, by convention
	// in reverse DNS, such as org.example.chat.
	Identifier string `env:"IDENTIFIER,required,notEmpty"`
	// MinLibXMTPVersion is empty or a semantic version.
	MinLibXMTPVersion string `env:"MIN_LIBXMTP_VERSION"`
	// Chains are the chains whose wallet signatures the reader verifies; of each
	// entry only the id in front of the first = is used.
	Chains Chains `env:"CHAINS"`
	// The MLS values are advice to clients; nothing here enforces them.
	MaxGroupMembers          uint32 `env:"MAX_GROUP_MEMBERS"           envDefault:"250"`
	MaxInstallationsPerInbox uint32 `env:"MAX_INSTALLATIONS_PER_INBOX" envDefault:"10"`
	CommitLogEnabled         bool   `env:"COMMIT_LOG_ENABLED"          envDefault:"true"`
}

// Chains are CAIP-2 ids, in the order of the configuration. The endpoints behind
// them are not kept.
type Chains []string

// UnmarshalText reads eip155:1=https://…,eip155:8453=https://…
func (c *Chains) UnmarshalText(text []byte) error {
	*c = nil
	for i, entry := range strings.Split(string(text), ",") {
		id, _, _ := strings.Cut(strings.TrimSpace(entry), "=")
		if id = strings.TrimSpace(id); id == "" {
			continue
		}
		if err := caip.CheckEIP155(id); err != nil {
			return fmt.Errorf("XMTP_CHAINS: entry %d: %w; expected entries like eip155:1=https://host, separated by commas", i+1, err)
		}
		if slices.Contains(*c, id) {
			return fmt.Errorf("XMTP_CHAINS: entry %d repeats chain %s, expected each chain once", i+1, id)
		}
		*c = append(*c, id)
	}
	return nil
}

// semanticVersion is semver.org's grammar, without its limits on leading zeros.
var semanticVersion = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// Validate names each variable that is out of range.
func (c PublishedConfig) Validate() error {
	var errs []error
	if n := len(c.Identifier); n < 1 || n > maxIdentifierBytes || !isName(c.Identifier) {
		errs = append(errs, fmt.Errorf("XMTP_IDENTIFIER has %d bytes, expected 1 to %d bytes of UTF-8 without white space or control characters", n, maxIdentifierBytes))
	}
	if c.MinLibXMTPVersion != "" && !semanticVersion.MatchString(c.MinLibXMTPVersion) {
		errs = append(errs, fmt.Errorf("XMTP_MIN_LIBXMTP_VERSION is %q, expected nothing or a version such as 1.2.3", c.MinLibXMTPVersion))
	}
	if c.MaxGroupMembers == 0 {
		errs = append(errs, errors.New("XMTP_MAX_GROUP_MEMBERS is 0, expected at least 1"))
	}
	if c.MaxInstallationsPerInbox == 0 {
		errs = append(errs, errors.New("XMTP_MAX_INSTALLATIONS_PER_INBOX is 0, expected at least 1"))
	}
	return errors.Join(errs...)
}

func isName(s string) bool {
	for _, r := range s {
		if r == unicode.ReplacementChar || unicode.IsSpace(r) || unicode.IsControl(r) {
			return false
		}
	}
	return true
}

// published builds the answer of GetConfiguration, which stays the same for the
// life of the process.
func published(c Config, version string) ([]byte, error) {
	response := &backendv1.GetConfigurationResponse{
		Identifier:        c.Published.Identifier,
		ServerVersion:     version,
		MinLibxmtpVersion: c.Published.MinLibXMTPVersion,
		Auth:              &backendv1.AuthConfiguration{},
		Retention:         retentionOf(c.Retention),
		Limits:            limitsOf(c.Limits),
		Mls: &backendv1.MlsConfiguration{
			MaxGroupMembers:          c.Published.MaxGroupMembers,
			MaxInstallationsPerInbox: c.Published.MaxInstallationsPerInbox,
			CommitLogEnabled:         &c.Published.CommitLogEnabled,
		},
		SmartContractWalletChains: c.Published.Chains,
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(response)
	if err != nil {
		return nil, fmt.Errorf("encode the published configuration: %w", err)
	}
	if len(encoded) > maxPublishedBytes {
		return nil, fmt.Errorf("the published configuration has %d bytes, expected at most %d: shorten XMTP_CHAINS", len(encoded), maxPublishedBytes)
	}
	return encoded, nil
}

func retentionOf(r limit.Retention) *backendv1.RetentionConfiguration {
	return &backendv1.RetentionConfiguration{
		GroupMessageSeconds: uint64(r.GroupMessage / time.Second),
		WelcomeSeconds:      uint64(r.Welcome / time.Second),
		KeyPackageSeconds:   uint64(r.KeyPackage / time.Second),
	}
}

func limitsOf(c limit.Config) *backendv1.LimitsConfiguration {
	return &backendv1.LimitsConfiguration{
		MaxEnvelopeBytes:         c.MaxEnvelopeBytes,
		MaxRequestBytes:          c.MaxRequestBytes,
		MaxResponseBytes:         c.MaxResponseBytes,
		MaxPublishTopics:         c.MaxPublishTopics,
		MaxQueryTopics:           c.MaxQueryTopics,
		MaxQueryLimit:            c.MaxQueryLimit,
		DefaultQueryLimit:        c.DefaultQueryLimit,
		MaxNewestMetadataTopics:  c.MaxNewestMetadataTopics,
		MaxNewestFullTopics:      c.MaxNewestFullTopics,
		MaxUpdateAdds:            c.MaxUpdateAdds,
		MaxUpdateRemoves:         c.MaxUpdateRemoves,
		MaxStreamTopics:          c.MaxStreamTopics,
		MaxStaticTopics:          c.MaxStaticTopics,
		MaxLookupIdentifiers:     c.MaxLookupIdentifiers,
		MaxScwSignatures:         c.MaxSCWSignatures,
		MaxIdentityEntries:       c.MaxIdentityEntries,
		MaxUpdateFramesPerSecond: c.MaxUpdateFramesPerSecond,
		MaxUpdateBurst:           c.MaxUpdateBurst,
		MaxPingFramesPerSecond:   c.MaxPingFramesPerSecond,
		MaxPingBurst:             c.MaxPingBurst,
	}
}
