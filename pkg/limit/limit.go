// Package limit holds the limits of the API, one named value each (API-131).
// Every role reads the same environment variables, so that a limit has the same
// value everywhere.
package limit

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// The ceilings that configuration cannot raise (API-135), and the room that the
// metadata and framing of one stored envelope takes beside its bytes.
const (
	MaxMessageBytesCeiling = 25 << 20
	EnvelopeOverheadBytes  = 256
	// MaxFrameBytes is about how long a Messages frame of a stream gets.
	MaxFrameBytes = 2 << 20
)

// Config is the limits that a client sizes its requests to. Each variable is
// named after its field in LimitsConfiguration.
type Config struct {
	MaxEnvelopeBytes         uint64 `env:"MAX_ENVELOPE_BYTES"           envDefault:"1048576"`  // bytes of one envelope in its canonical encoding
	MaxRequestBytes          uint64 `env:"MAX_REQUEST_BYTES"            envDefault:"26214400"` // bytes of one request on the wire
	MaxResponseBytes         uint64 `env:"MAX_RESPONSE_BYTES"           envDefault:"26214400"` // bytes of one response or stream frame
	MaxPublishTopics         uint32 `env:"MAX_PUBLISH_TOPICS"           envDefault:"1000"`     // distinct topics of one Publish
	MaxQueryTopics           uint32 `env:"MAX_QUERY_TOPICS"             envDefault:"1000"`     // topics of one Query
	MaxQueryLimit            uint32 `env:"MAX_QUERY_LIMIT"              envDefault:"1000"`     // largest page that a Query may ask for
	DefaultQueryLimit        uint32 `env:"DEFAULT_QUERY_LIMIT"          envDefault:"100"`      // page of a Query that does not say how long
	MaxNewestMetadataTopics  uint32 `env:"MAX_NEWEST_METADATA_TOPICS"   envDefault:"1000"`     // topics of one QueryNewest for metadata
	MaxNewestFullTopics      uint32 `env:"MAX_NEWEST_FULL_TOPICS"       envDefault:"100"`      // topics of one QueryNewest for whole envelopes
	MaxUpdateAdds            uint32 `env:"MAX_UPDATE_ADDS"              envDefault:"100000"`   // topics added by one update of a stream
	MaxUpdateRemoves         uint32 `env:"MAX_UPDATE_REMOVES"           envDefault:"100000"`   // topics removed by one update of a stream
	MaxStreamTopics          uint32 `env:"MAX_STREAM_TOPICS"            envDefault:"100000"`   // topics registered on one Subscribe stream
	MaxStaticTopics          uint32 `env:"MAX_STATIC_TOPICS"            envDefault:"10000"`    // topics of one SubscribeStatic
	MaxLookupIdentifiers     uint32 `env:"MAX_LOOKUP_IDENTIFIERS"       envDefault:"250"`      // identifiers of one GetInboxIds
	MaxSCWSignatures         uint32 `env:"MAX_SCW_SIGNATURES"           envDefault:"100"`      // signatures of one contract-wallet verification request
	MaxIdentityEntries       uint32 `env:"MAX_IDENTITY_ENTRIES"         envDefault:"256"`      // identity updates that one inbox can hold
	MaxUpdateFramesPerSecond uint32 `env:"MAX_UPDATE_FRAMES_PER_SECOND" envDefault:"10"`       // update frames of one stream a second
	MaxUpdateBurst           uint32 `env:"MAX_UPDATE_BURST"             envDefault:"100"`      // update frames of one stream at once
	MaxPingFramesPerSecond   uint32 `env:"MAX_PING_FRAMES_PER_SECOND"   envDefault:"10"`       // client pings of one stream a second
	MaxPingBurst             uint32 `env:"MAX_PING_BURST"               envDefault:"100"`      // client pings of one stream at once
	// MaxConcurrentStreams is per HTTP/2 connection of the public port
	// (API-132); it is advertised by HTTP/2 itself, not published.
	MaxConcurrentStreams uint32 `env:"MAX_CONCURRENT_STREAMS" envDefault:"100"`
	// KeepaliveInterval is carried in Started (API-090), not published.
	KeepaliveInterval time.Duration `env:"KEEPALIVE_INTERVAL" envDefault:"30s"`
}

// Default has the values that all backends of the protocol share (API-135).
func Default() Config {
	return Config{
		MaxEnvelopeBytes:         1 << 20,
		MaxRequestBytes:          MaxMessageBytesCeiling,
		MaxResponseBytes:         MaxMessageBytesCeiling,
		MaxPublishTopics:         1000,
		MaxQueryTopics:           1000,
		MaxQueryLimit:            1000,
		DefaultQueryLimit:        100,
		MaxNewestMetadataTopics:  1000,
		MaxNewestFullTopics:      100,
		MaxUpdateAdds:            100_000,
		MaxUpdateRemoves:         100_000,
		MaxStreamTopics:          100_000,
		MaxStaticTopics:          10_000,
		MaxLookupIdentifiers:     250,
		MaxSCWSignatures:         100,
		MaxIdentityEntries:       256,
		MaxUpdateFramesPerSecond: 10,
		MaxUpdateBurst:           100,
		MaxPingFramesPerSecond:   10,
		MaxPingBurst:             100,
		MaxConcurrentStreams:     100,
		KeepaliveInterval:        30 * time.Second,
	}
}

// Validate refuses a zero (clients read it as "not provided"), a value above a
// ceiling, and limits that contradict each other. Each error names its variable.
func (c Config) Validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	for _, positive := range []struct {
		name  string
		value uint64
	}{
		{"MAX_ENVELOPE_BYTES", c.MaxEnvelopeBytes},
		{"MAX_REQUEST_BYTES", c.MaxRequestBytes},
		{"MAX_RESPONSE_BYTES", c.MaxResponseBytes},
		{"MAX_PUBLISH_TOPICS", uint64(c.MaxPublishTopics)},
		{"MAX_QUERY_TOPICS", uint64(c.MaxQueryTopics)},
		{"MAX_QUERY_LIMIT", uint64(c.MaxQueryLimit)},
		{"DEFAULT_QUERY_LIMIT", uint64(c.DefaultQueryLimit)},
		{"MAX_NEWEST_METADATA_TOPICS", uint64(c.MaxNewestMetadataTopics)},
		{"MAX_NEWEST_FULL_TOPICS", uint64(c.MaxNewestFullTopics)},
		{"MAX_UPDATE_ADDS", uint64(c.MaxUpdateAdds)},
		{"MAX_UPDATE_REMOVES", uint64(c.MaxUpdateRemoves)},
		{"MAX_STREAM_TOPICS", uint64(c.MaxStreamTopics)},
		{"MAX_STATIC_TOPICS", uint64(c.MaxStaticTopics)},
		{"MAX_LOOKUP_IDENTIFIERS", uint64(c.MaxLookupIdentifiers)},
		{"MAX_SCW_SIGNATURES", uint64(c.MaxSCWSignatures)},
		{"MAX_IDENTITY_ENTRIES", uint64(c.MaxIdentityEntries)},
		{"MAX_UPDATE_FRAMES_PER_SECOND", uint64(c.MaxUpdateFramesPerSecond)},
		{"MAX_UPDATE_BURST", uint64(c.MaxUpdateBurst)},
		{"MAX_PING_FRAMES_PER_SECOND", uint64(c.MaxPingFramesPerSecond)},
		{"MAX_PING_BURST", uint64(c.MaxPingBurst)},
		{"MAX_CONCURRENT_STREAMS", uint64(c.MaxConcurrentStreams)},
	} {
		if positive.value == 0 {
			refuse("XMTP_%s is 0, expected at least 1", positive.name)
		}
	}
	for _, capped := range []struct {
		name  string
		value uint64
	}{{"MAX_REQUEST_BYTES", c.MaxRequestBytes}, {"MAX_RESPONSE_BYTES", c.MaxResponseBytes}} {
		if capped.value > MaxMessageBytesCeiling {
			refuse("XMTP_%s is %d, expected at most %d", capped.name, capped.value, MaxMessageBytesCeiling)
		}
	}
	if c.DefaultQueryLimit > c.MaxQueryLimit {
		refuse("XMTP_DEFAULT_QUERY_LIMIT is %d, expected at most XMTP_MAX_QUERY_LIMIT, which is %d", c.DefaultQueryLimit, c.MaxQueryLimit)
	}
	// A frame or a response always has room for one envelope of the maximum size.
	if room := min(c.MaxResponseBytes, MaxFrameBytes); c.MaxEnvelopeBytes > room-min(room, EnvelopeOverheadBytes) {
		refuse("XMTP_MAX_ENVELOPE_BYTES is %d, expected at most %d: %d below the smaller of XMTP_MAX_RESPONSE_BYTES and the %d bytes of a stream frame",
			c.MaxEnvelopeBytes, room-min(room, EnvelopeOverheadBytes), EnvelopeOverheadBytes, MaxFrameBytes)
	}
	// In a request an envelope is a field: one tag byte and its length.
	if framed := c.MaxEnvelopeBytes + 1 + uint64(varintLength(c.MaxEnvelopeBytes)); framed > c.MaxRequestBytes {
		refuse("XMTP_MAX_ENVELOPE_BYTES with its framing is %d, expected at most XMTP_MAX_REQUEST_BYTES, which is %d", framed, c.MaxRequestBytes)
	}
	if ms := c.KeepaliveInterval.Milliseconds(); ms < 1 || ms > math.MaxUint32 {
		refuse("XMTP_KEEPALIVE_INTERVAL is %v, expected between 1ms and %v", c.KeepaliveInterval, time.Duration(math.MaxUint32)*time.Millisecond)
	}
	return errors.Join(errs...)
}

func varintLength(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}
