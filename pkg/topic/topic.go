// Package topic holds the names under which envelopes are stored and read: one
// kind byte followed by an identifier of that kind's length (API-002).
package topic

import (
	"math"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// Kind is the first byte of a topic.
type Kind byte

// The kinds of API-002.
const (
	GroupMessage   Kind = 0x00
	Welcome        Kind = 0x01
	IdentityUpdate Kind = 0x02
	KeyPackage     Kind = 0x03
	CommitLog      Kind = 0x04
)

// GroupIDLength and KeyLength are the identifier lengths in bytes: a group id,
// and an installation key or inbox id.
const (
	GroupIDLength = 16
	KeyLength     = 32
)

// identifierLength is in bytes, indexed by kind.
var identifierLength = [...]int{
	GroupMessage:   GroupIDLength,
	Welcome:        KeyLength,
	IdentityUpdate: KeyLength,
	KeyPackage:     KeyLength,
	CommitLog:      GroupIDLength,
}

// kindName is what errors call each kind.
var kindName = [...]string{
	GroupMessage:   "group message",
	Welcome:        "welcome",
	IdentityUpdate: "identity update",
	KeyPackage:     "key package",
	CommitLog:      "commit-log entry",
}

// String names the kind in plain words.
func (k Kind) String() string {
	if int(k) < len(kindName) {
		return kindName[k]
	}
	return "unknown kind"
}

// Topic is the kind byte and the identifier bytes. A Topic made by New or Parse
// is well formed. It is a string so that it is comparable, ordered by its bytes
// as PostgreSQL orders bytea, and a map key without a copy.
type Topic string

// New returns the topic of an identifier. An identifier of the wrong length is
// Invalid with reason MalformedPayload, since it comes from a payload.
func New(kind Kind, identifier []byte) (Topic, error) {
	if err := check(kind, len(identifier)); err != nil {
		return "", err
	}
	var buffer [1 + KeyLength]byte
	buffer[0] = byte(kind)
	return Topic(buffer[:1+copy(buffer[1:], identifier)]), nil
}

// Parse reads a topic that a request names. An unknown kind or a wrong length
// is Invalid (API-003).
func Parse(raw []byte) (Topic, error) {
	if len(raw) == 0 {
		return "", fault.Invalidf(fault.NoReason, "the topic is empty, expected a kind byte and an identifier")
	}
	if err := check(Kind(raw[0]), len(raw)-1); err != nil {
		err.Reason = fault.NoReason
		return "", err
	}
	return Topic(raw), nil
}

func check(kind Kind, length int) *fault.Error {
	if int(kind) >= len(identifierLength) {
		return fault.Invalidf(fault.MalformedPayload, "topic kind 0x%02x is unknown, expected 0x00 to 0x%02x",
			byte(kind), len(identifierLength)-1)
	}
	if want := identifierLength[kind]; length != want {
		return fault.Invalidf(fault.MalformedPayload, "the identifier of a %s topic has %d bytes, expected %d",
			kind, length, want)
	}
	return nil
}

// Kind is the kind byte of a well-formed topic.
func (t Topic) Kind() Kind { return Kind(t[0]) }

// Identifier is the topic without its kind byte.
func (t Topic) Identifier() string { return string(t[1:]) }

// SequenceID is the position of an envelope: unique across all topics, ordered
// within one (API-010, API-012). As a cursor, 0 is the beginning of a topic.
type SequenceID int64

// ParseCursor reads a cursor from the wire; a value above INT64_MAX is Invalid
// (API-004).
func ParseCursor(wire uint64) (SequenceID, error) {
	if wire > math.MaxInt64 {
		return 0, fault.Invalidf(fault.NoReason, "cursor %d is too large, expected at most %d", wire, int64(math.MaxInt64))
	}
	return SequenceID(wire), nil
}
