package mls

import (
	"bytes"
	"crypto/ed25519"
	"time"
	"unicode/utf8"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
)

// KeyPackage is a parsed key package. Make it with ParseKeyPackage; its parts
// are parts of the input.
type KeyPackage struct {
	version    uint16
	suite      uint16
	initKey    []byte
	leaf       leafNode
	extensions extensionList
	signature  []byte
	// signed is everything before the signature: the content of KeyPackageTBS.
	signed []byte
}

// ParseKeyPackage reads a bare key package that fills data to its last byte,
// and whose leaf has a signature key of the length of an installation key: what
// its topic takes. Anything else is Invalid with reason MalformedPayload
// (API-040) and a text that names the byte where it went wrong. No signature
// and no clock is looked at; that is for Validate.
func ParseKeyPackage(data []byte) (KeyPackage, error) {
	r := newReader("key package", data)
	k := r.keyPackage()
	if r.more() {
		r.fail(r.at, "%d bytes follow its end, expected none", len(data)-r.at)
	}
	if r.err != nil {
		return KeyPackage{}, r.err
	}
	if length := len(k.leaf.signatureKey); length != ed25519.PublicKeySize {
		return KeyPackage{}, fault.Invalidf(fault.MalformedPayload,
			"the leaf signature key of the key package has %d bytes, expected %d", length, ed25519.PublicKeySize)
	}
	return k, nil
}

// InstallationKey is the signature key of the leaf, the identifier of the
// package's topic (API-002).
func (k KeyPackage) InstallationKey() [ed25519.PublicKeySize]byte {
	return [ed25519.PublicKeySize]byte(k.leaf.signatureKey)
}

// Validate checks all that the parse did not: where the leaf is from, both
// signatures, keys, extensions, lifetime and credential (API-042). A failure is
// Invalid with reason InvalidKeyPackage. The lifetime is held against now in
// whole seconds, without a margin: clients leave one when they make a package.
//
// On purpose it does not ask what other backends do not ask either: that the
// capabilities list the version, the suite, the credential type or the leaf's
// extensions; that a lifetime is of a certain length; that the inbox id has its
// format, agrees with the application id or is known; that keys other than the
// signature key and data of application extensions make sense.
func (k KeyPackage) Validate(now time.Time) error {
	if failure := k.check(now); failure != nil {
		return failure
	}
	return nil
}

// check runs the checks in the order that clients know from other backends, so
// that a package with several faults is refused for the same one everywhere.
func (k KeyPackage) check(now time.Time) *fault.Error {
	if k.leaf.source != sourceKeyPackage {
		return invalid("the leaf node source is %d, expected 1 (key package)", k.leaf.source)
	}
	if !signsWithEd25519(k.suite) {
		return invalid("the cipher suite 0x%04x does not sign with Ed25519, as installation keys do", k.suite)
	}
	signatures := newVerifier(k.leaf.signatureKey, len(k.signed))
	if !signatures.verify("LeafNodeTBS", k.leaf.signed, k.leaf.signature) {
		return invalid("the leaf signature is not one of the leaf's signature key")
	}
	if k.version != protocolVersion {
		return invalid("the protocol version is %d, expected 1", k.version)
	}
	if bytes.Equal(k.initKey, k.leaf.encryptionKey) {
		return invalid("the init key is the leaf's encryption key, expected two keys")
	}
	for rest := k.extensions; len(rest) > 0; {
		var kind uint16
		if kind, rest = rest.next(); !allowedInPackage(kind) {
			return invalid("the extension type 0x%04x has no place in a key package", kind)
		}
	}
	if !signatures.verify("KeyPackageTBS", k.signed, k.signature) {
		return invalid("the signature is not one of the leaf's signature key")
	}
	if failure := k.checkSupport(); failure != nil {
		return failure
	}
	if failure := k.checkLifetime(now); failure != nil {
		return failure
	}
	if k.leaf.credentialType != credentialBasic {
		return invalid("the credential type is %d, expected 1 (basic)", k.leaf.credentialType)
	}
	if !isCredential(k.leaf.identity) {
		return invalid("the credential does not decode as an MlsCredential")
	}
	return nil
}

// checkSupport wants every extension type of the package, but not those of its
// leaf, among the leaf's capabilities.
func (k KeyPackage) checkSupport() *fault.Error {
	var supported codeSet
	supported.addAll(k.leaf.capabilities)
	for rest := k.extensions; len(rest) > 0; {
		var kind uint16
		if kind, rest = rest.next(); !supported.has(kind) {
			return invalid("the extension type 0x%04x is not among the leaf's capabilities", kind)
		}
	}
	return nil
}

// checkLifetime holds both ends of the lifetime against the clock: valid from
// the second of notBefore to the one before notAfter.
func (k KeyPackage) checkLifetime(now time.Time) *fault.Error {
	seconds := uint64(max(now.Unix(), 0))
	switch {
	case k.leaf.notAfter <= seconds:
		return invalid("the lifetime ended %d seconds ago", seconds-k.leaf.notAfter)
	case k.leaf.notBefore > seconds:
		return invalid("the lifetime begins in %d seconds", k.leaf.notBefore-seconds)
	}
	return nil
}

// isCredential says whether bytes decode as the protobuf message
// MlsCredential. The generated decoder takes an inbox id of another wire type
// for an unknown field; the backends that clients know do not.
func isCredential(encoded []byte) bool {
	const inboxID = 1
	m := wire.Read(encoded)
	for m.Next() {
		if m.Number() == inboxID && (!m.IsBytes(inboxID) || !utf8.Valid(m.Bytes())) {
			return false
		}
	}
	return m.Err() == nil
}

func invalid(format string, args ...any) *fault.Error {
	failure := fault.Invalidf(fault.InvalidKeyPackage, format, args...)
	return fault.Invalidf(fault.InvalidKeyPackage, "the key package is not valid: %s", failure.Text())
}
