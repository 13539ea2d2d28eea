package mls

import "encoding/binary"

// protocolVersion is MLS 1.0, the only version there is, and credentialBasic
// the type of the credentials of XMTP.
const (
	protocolVersion = 1
	credentialBasic = 1
)

// Cipher suites with a meaning here. Clients make packages of suite 3 only;
// which others pass follows from their signature scheme alone.
const (
	suiteX25519AES128       = 0x0001
	suiteP256AES128         = 0x0002
	suiteX25519ChaCha20     = 0x0003
	suiteX448AES256         = 0x0004
	suiteP521AES256         = 0x0005
	suiteX448ChaCha20       = 0x0006
	suiteP384AES256         = 0x0007
	suitePostQuantumP384    = 0x0042
	suiteXWing              = 0x004D
	suiteXWingVariant1      = 0x004E
	suiteXWingVariant2      = 0x004F
	suitePostQuantumFirst   = 0x0050
	suitePostQuantumLast    = 0x0052
	suiteMLDSAFirst         = 0x0906
	suiteMLDSALast          = 0x0907
	suitePostQuantumEd25519 = 0xF042
)

// knownSuite says whether a code point decodes as a cipher suite. A GREASE
// value does not.
func knownSuite(suite uint16) bool {
	switch suite {
	case suiteP256AES128, suiteX448AES256, suiteP521AES256, suiteX448ChaCha20,
		suiteP384AES256, suitePostQuantumP384:
		return true
	}
	return signsWithEd25519(suite) ||
		suite >= suitePostQuantumFirst && suite <= suitePostQuantumLast ||
		suite >= suiteMLDSAFirst && suite <= suiteMLDSALast
}

// signsWithEd25519 says whether the signature scheme of a suite is Ed25519, the
// only one whose keys are installation keys.
func signsWithEd25519(suite uint16) bool {
	switch suite {
	case suiteX25519AES128, suiteX25519ChaCha20, suiteXWing, suiteXWingVariant1,
		suiteXWingVariant2, suitePostQuantumEd25519:
		return true
	}
	return false
}

// Extension types with rules of their own. Every other type is opaque.
const (
	extensionApplicationID        = 0x0001
	extensionRatchetTree          = 0x0002
	extensionRequiredCapabilities = 0x0003
	extensionExternalPub          = 0x0004
	extensionExternalSenders      = 0x0005
	extensionAppDataDictionary    = 0x0006
	extensionLastResort           = 0x000a
	extensionImmutableMetadata    = 0xf000
)

// allowedInLeaf says whether a leaf node may carry an extension type. What the
// protocol does not know is allowed, listed in the capabilities or not.
func allowedInLeaf(kind uint16) bool {
	switch kind {
	case extensionRatchetTree, extensionRequiredCapabilities, extensionExternalPub,
		extensionExternalSenders, extensionLastResort, extensionImmutableMetadata:
		return false
	}
	return true
}

// allowedInPackage says whether a key package may carry an extension type
// outside its leaf.
func allowedInPackage(kind uint16) bool {
	switch kind {
	case extensionApplicationID, extensionRatchetTree, extensionRequiredCapabilities,
		extensionExternalPub, extensionExternalSenders, extensionImmutableMetadata:
		return false
	}
	return !isGrease(kind)
}

// isGrease recognizes the values that clients send to keep receivers tolerant:
// 0x0A0A, 0x1A1A and so on to 0xEAEA.
func isGrease(code uint16) bool {
	return code&0x0f0f == 0x0a0a && code>>8 == code&0xff && code != 0xfafa
}

// codeSet is a set of code points. Its size does not depend on the input, and
// it stays on the stack.
type codeSet [1 << 16 / 64]uint64

// add puts a code point in and says whether it was there.
func (s *codeSet) add(code uint16) bool {
	was := s.has(code)
	s[code/64] |= 1 << (code % 64)
	return was
}

func (s *codeSet) has(code uint16) bool { return s[code/64]&(1<<(code%64)) != 0 }

// addAll puts in each code point of a list of two-byte values.
func (s *codeSet) addAll(list []byte) {
	for ; len(list) >= 2; list = list[2:] {
		s.add(binary.BigEndian.Uint16(list))
	}
}
