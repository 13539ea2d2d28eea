package association

import (
	"encoding/hex"
	"slices"
	"strings"

	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// Changes returns the identifiers that an update made and unmade members, in
// the order of kind and value: what the lookup of inbox ids has to learn from it.
// Installations are left out, since they are never looked up. A nil state has no members.
func Changes(before, after *State) (added, removed []Identifier) {
	return missing(after, before), missing(before, after)
}

// missing lists the identifiers that can be looked up and that are members in
// one state but not in the other.
func missing(in, notIn *State) []Identifier {
	if in == nil {
		return nil
	}
	var found []Identifier
	for identifier := range in.members {
		if identifier.Kind != Installation && (notIn == nil || !notIn.IsMember(identifier)) {
			found = append(found, identifier)
		}
	}
	slices.SortFunc(found, compare)
	return found
}

// LookupKey is the kind and key under which the member is looked up. An
// installation has none.
func (i Identifier) LookupKey() (kind associations.IdentifierKind, key string, ok bool) {
	switch i.Kind {
	case Ethereum:
		return associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM, strings.ToLower(i.Value), true
	case Passkey:
		return associations.IdentifierKind_IDENTIFIER_KIND_PASSKEY, hex.EncodeToString([]byte(i.Value)), true
	default:
		return associations.IdentifierKind_IDENTIFIER_KIND_UNSPECIFIED, "", false
	}
}

// The lengths, in bytes, of the two forms of a passkey's public key.
const (
	compressedPasskey   = 1 + p256Length
	uncompressedPasskey = 1 + 2*p256Length
)

// LookupKey is the key under which a requested identifier is looked up. It is
// not ok if no member can ever have that identifier: then there is no inbox,
// and nothing to ask a database. Kind 0 is Ethereum; a kind unknown here has no
// members.
func LookupKey(kind associations.IdentifierKind, identifier string) (key string, ok bool) {
	switch kind {
	case associations.IdentifierKind_IDENTIFIER_KIND_UNSPECIFIED, associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM:
		digits := identifier
		if len(identifier) == addressLength {
			if identifier[0] != '0' || identifier[1]|0x20 != 'x' {
				return "", false
			}
			digits = identifier[2:]
		}
		// A contract wallet may be a member without the leading 0x.
		if len(digits) != addressLength-2 || !isHex(digits) {
			return "", false
		}
		return strings.ToLower(identifier), true
	case associations.IdentifierKind_IDENTIFIER_KIND_PASSKEY:
		if len(identifier) != 2*compressedPasskey && len(identifier) != 2*uncompressedPasskey || !isHex(identifier) {
			return "", false
		}
		return strings.ToLower(identifier), true
	default:
		return "", false
	}
}
