package mls

import (
	"crypto/ed25519"

	"filippo.io/edwards25519"
)

// verifier checks signatures of one key as MLS makes them (RFC 9420, section
// 5.1.2). It reuses a buffer, so it is for one goroutine.
type verifier struct {
	key    strictKey
	buffer []byte
}

// newVerifier returns a verifier for contents of up to size bytes.
func newVerifier(key []byte, size int) verifier {
	const framing = 32 // label and length prefixes
	return verifier{key: newStrictKey(key), buffer: make([]byte, 0, size+framing)}
}

// verify says whether signature is the key's over a labelled content.
func (v *verifier) verify(label string, content, signature []byte) bool {
	const prefix = "MLS 1.0 "
	v.buffer = appendLength(v.buffer[:0], len(prefix)+len(label))
	v.buffer = append(append(v.buffer, prefix...), label...)
	v.buffer = appendLength(v.buffer, len(content))
	v.buffer = append(v.buffer, content...)
	return v.key.verify(v.buffer, signature)
}

// appendLength writes the length prefix of a vector below 2^30 bytes.
func appendLength(to []byte, length int) []byte {
	switch {
	case length < 1<<6:
		return append(to, byte(length))
	case length < 1<<14:
		return append(to, 1<<6|byte(length>>8), byte(length))
	default:
		return append(to, 2<<6|byte(length>>24), byte(length>>16), byte(length>>8), byte(length))
	}
}

// strictKey is an Ed25519 public key that refuses signatures which hold for more
// than one message: all of them if the key has small order, and those with an R
// of small order.
type strictKey struct {
	key    []byte
	usable bool
}

func newStrictKey(key []byte) strictKey {
	return strictKey{key: key, usable: len(key) == ed25519.PublicKeySize && !hasSmallOrder(key)}
}

func (k strictKey) verify(message, signature []byte) bool {
	return k.usable &&
		len(signature) == ed25519.SignatureSize &&
		ed25519.Verify(k.key, message, signature) &&
		!hasSmallOrder(signature[:32])
}

// hasSmallOrder says whether a point that takes part in a signature is one of
// the eight that the cofactor takes to the identity, in whatever encoding.
// Bytes that are no point count as such.
func hasSmallOrder(encoded []byte) bool {
	point, err := new(edwards25519.Point).SetBytes(encoded)
	if err != nil {
		return true
	}
	return point.MultByCofactor(point).Equal(edwards25519.NewIdentityPoint()) == 1
}
