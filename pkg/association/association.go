// Package association decides whether an identity update is valid and what an
// inbox looks like after it: who its members are, who may recover it, and which
// identifiers resolve to it (API-043, API-044, API-122).
//
// An update passes through three steps. Prepare checks its structure, Verify
// its signatures, Apply its meaning against the state of the inbox. The state
// comes from Replay of the inbox's whole stored history. Signed fields are used
// exactly as received; only signers and lookup keys are normalized.
//
// A new update is held to the rules that clients hold whole logs to (IDENT-nnn). What
// is stored was accepted by the rules of its time and is taken as it is: Replay asks
// less than the three steps do. An Auditor says whether
// clients would take a log.
package association

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// InboxIDLength is the length of an inbox id in bytes.
const InboxIDLength = 32

// MemberKind says what an identifier identifies.
type MemberKind uint8

// The kinds of identifiers.
const (
	Ethereum MemberKind = iota + 1
	Passkey
	Installation
)

// Identifier names a member or a recovery identifier of an inbox. It is
// comparable: two identifiers are the same one only if they are byte for byte
// the same. The zero value names nothing.
type Identifier struct {
	Kind MemberKind
	// Value is the address as received for Ethereum, the raw key bytes for a
	// passkey or an installation.
	Value string
}

// Text is the form that is signed and from which an inbox id derives: an
// address as received, a key in lower-case hex.
func (i Identifier) Text() string {
	if i.Kind == Ethereum {
		return i.Value
	}
	return hex.EncodeToString([]byte(i.Value))
}

func compare(a, b Identifier) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Value, b.Value))
}

// isCanonical says whether the identifier has the only spelling in which a new
// update may have it: an Ethereum address is 0x and 40 lower-case hex digits
// (IDENT-013), any key will do.
func (i Identifier) isCanonical() bool {
	return i.Kind != Ethereum ||
		len(i.Value) == addressLength && i.Value[:2] == "0x" && isHex(i.Value[2:]) && strings.ToLower(i.Value) == i.Value
}

func ethereum(address string) Identifier { return Identifier{Kind: Ethereum, Value: address} }

// InboxID derives the inbox id, in lower-case hex, from the text form of the
// first identifier and the nonce of CreateInbox.
func InboxID(identifierText string, nonce uint64) string {
	input := make([]byte, 0, len(identifierText)+20)
	input = append(input, identifierText...)
	input = strconv.AppendUint(input, nonce, 10)
	sum := sha256.Sum256(input)
	return hex.EncodeToString(sum[:])
}

// ParseInboxID decodes an inbox id of 64 hex digits in either case. Anything
// else is Invalid with reason MalformedPayload.
func ParseInboxID(inboxID string) ([InboxIDLength]byte, error) {
	var id [InboxIDLength]byte
	if len(inboxID) != hex.EncodedLen(InboxIDLength) {
		return id, fault.Invalidf(fault.MalformedPayload, "the inbox id has %d characters, expected 64 hex digits", len(inboxID))
	}
	if _, err := hex.Decode(id[:], []byte(inboxID)); err != nil {
		return [InboxIDLength]byte{}, fault.Invalidf(fault.MalformedPayload, "the inbox id has a character that is not a hex digit, expected 64 hex digits")
	}
	return id, nil
}

func isHex(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		if (s[i] < '0' || s[i] > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
