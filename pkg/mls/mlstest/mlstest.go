// Package mlstest makes MLS payloads for tests, the command-line client and the
// load generator: group messages and signed key packages as current clients
// send them, and every way of breaking them that the backend must notice. It
// has an encoder of its own, so that it can disagree with the parser under
// test.
//
// A Maker gives the same payloads for the same seed and the same calls.
// Payloads are structures until Encode: change a field to break one, then
// encode, and for a key package sign before, between or after the changes.
package mlstest

import (
	"crypto/ed25519"
	"encoding/binary"
	"math/rand/v2"
)

// Maker makes payloads from a seed. It is for one goroutine.
type Maker struct {
	random *rand.ChaCha8
}

// New returns a maker whose output depends on seed alone.
func New(seed uint64) *Maker {
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	return &Maker{random: rand.NewChaCha8(key)}
}

// Bytes returns n random bytes.
func (m *Maker) Bytes(n int) []byte {
	b := make([]byte, n)
	_, _ = m.random.Read(b) // never fails
	return b
}

// GroupID returns a new group id.
func (m *Maker) GroupID() [16]byte { return [16]byte(m.Bytes(16)) }

// InstallationKey returns a new key pair of an installation.
func (m *Maker) InstallationKey() ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(m.Bytes(ed25519.SeedSize))
}

// Vector encodes an MLS vector: the length in the fewest bytes, then content.
func Vector(content []byte) []byte {
	switch length := len(content); {
	case length < 1<<6:
		return VectorOfWidth(1, length, content)
	case length < 1<<14:
		return VectorOfWidth(2, length, content)
	default:
		return VectorOfWidth(4, length, content)
	}
}

// VectorOfWidth encodes a vector with any claimed length, written in a prefix
// of 1, 2, 4 or 8 bytes. It breaks vectors; Vector makes good ones.
func VectorOfWidth(width, length int, content []byte) []byte {
	mark := map[int]byte{1: 0 << 6, 2: 1 << 6, 4: 2 << 6, 8: 3 << 6}[width]
	prefix := binary.BigEndian.AppendUint64(nil, uint64(length))[8-width:]
	prefix[0] |= mark
	return append(prefix, content...)
}

// writer builds the bytes of a structure.
type writer struct{ bytes []byte }

func (w *writer) raw(b []byte)    { w.bytes = append(w.bytes, b...) }
func (w *writer) vector(b []byte) { w.raw(Vector(b)) }
func (w *writer) uint8(v uint8)   { w.bytes = append(w.bytes, v) }
func (w *writer) uint16(v uint16) { w.bytes = binary.BigEndian.AppendUint16(w.bytes, v) }
func (w *writer) uint32(v uint32) { w.bytes = binary.BigEndian.AppendUint32(w.bytes, v) }
func (w *writer) uint64(v uint64) { w.bytes = binary.BigEndian.AppendUint64(w.bytes, v) }

func (w *writer) codes(codes []uint16) {
	var list writer
	for _, code := range codes {
		list.uint16(code)
	}
	w.vector(list.bytes)
}

// Extension is an extension of a key package, a leaf node or a group.
type Extension struct {
	Type uint16
	Data []byte
}

func (w *writer) extensions(extensions []Extension) {
	var list writer
	for _, extension := range extensions {
		list.uint16(extension.Type)
		list.vector(extension.Data)
	}
	w.vector(list.bytes)
}
