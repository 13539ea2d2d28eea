package mlstest

import (
	"crypto/ed25519"
	"encoding/hex"
	"slices"
	"time"
)

// Suite is the cipher suite of all XMTP clients: X25519, ChaCha20-Poly1305,
// SHA-256, Ed25519.
const Suite = 3

// Lifetime is how long a package of a current client is valid, and Backdated
// how long before it is made that starts.
const (
	Lifetime  = 84 * 24 * time.Hour
	Backdated = time.Hour
)

// Sources of a leaf node.
const (
	SourceKeyPackage = 1
	SourceUpdate     = 2
	SourceCommit     = 3
)

// Extension types that clients put into key packages.
const (
	ExtensionApplicationID  = 0x0001
	ExtensionAppData        = 0x0006
	ExtensionLastResort     = 0x000a
	ExtensionWelcomeWrapper = 0xff03
	ExtensionPointeeAEAD    = 0xff04
)

// KeyPackage is a key package, field by field.
type KeyPackage struct {
	Version     uint16
	CipherSuite uint16
	InitKey     []byte
	Leaf        LeafNode
	Extensions  []Extension
	Signature   []byte
}

// LeafNode is the leaf of a key package, an update or a commit. The lifetime is
// written with SourceKeyPackage, the parent hash with SourceCommit.
type LeafNode struct {
	EncryptionKey  []byte
	SignatureKey   []byte
	CredentialType uint16
	Credential     []byte
	Capabilities   Capabilities
	Source         uint8
	NotBefore      uint64
	NotAfter       uint64
	ParentHash     []byte
	Extensions     []Extension
	Signature      []byte
}

// Capabilities is what a client says it supports.
type Capabilities struct {
	Versions, CipherSuites, Extensions, Proposals, Credentials []uint16
}

// KeyPackage returns the unsigned package that a current client makes at a
// moment. inboxID is 64 hex digits in a real one.
func (m *Maker) KeyPackage(key ed25519.PrivateKey, inboxID string, made time.Time) KeyPackage {
	leaf := m.leaf(key)
	leaf.Credential = Credential(inboxID)
	leaf.Source = SourceKeyPackage
	leaf.NotBefore = uint64(made.Add(-Backdated).Unix())
	leaf.NotAfter = uint64(made.Add(Lifetime).Unix())
	leaf.Extensions = []Extension{{ExtensionApplicationID, Vector([]byte(inboxID))}}
	return KeyPackage{
		Version:     1,
		CipherSuite: Suite,
		InitKey:     m.Bytes(32),
		Leaf:        leaf,
		Extensions: []Extension{
			{ExtensionLastResort, nil},
			{ExtensionPointeeAEAD, []byte{0x0a, 0x01, 0x03}},
			{ExtensionWelcomeWrapper, append(append([]byte{0x0a, 0xc0, 0x09}, m.Bytes(1216)...), 0x10, 0x02)},
		},
	}
}

// SignedKeyPackage returns the encoded package that a current client uploads.
func (m *Maker) SignedKeyPackage(key ed25519.PrivateKey, inboxID string, made time.Time) []byte {
	return m.KeyPackage(key, inboxID, made).Signed(key)
}

// InboxID returns a random inbox id.
func (m *Maker) InboxID() string { return hex.EncodeToString(m.Bytes(32)) }

// leaf returns a leaf without source, credential and signature.
func (m *Maker) leaf(key ed25519.PrivateKey) LeafNode {
	return LeafNode{
		EncryptionKey:  m.Bytes(32),
		SignatureKey:   key.Public().(ed25519.PublicKey),
		CredentialType: 1,
		Capabilities: Capabilities{
			Versions:     []uint16{1},
			CipherSuites: []uint16{Suite},
			Extensions: []uint16{
				ExtensionLastResort, ExtensionApplicationID, 0xff02, 0xff00, 0xff01,
				ExtensionWelcomeWrapper, ExtensionPointeeAEAD, 0xf000,
			},
			Proposals:   []uint16{7},
			Credentials: []uint16{1},
		},
	}
}

// Credential encodes the identity of a basic credential: the protobuf message
// MlsCredential. The inbox id has fewer than 128 bytes.
func Credential(inboxID string) []byte {
	return append([]byte{0x0a, byte(len(inboxID))}, inboxID...)
}

// Signer signs a message as the signature key of a leaf would.
type Signer func(message []byte) []byte

// Ed25519 signs with a key.
func Ed25519(key ed25519.PrivateKey) Signer {
	return func(message []byte) []byte { return ed25519.Sign(key, message) }
}

// Signed signs the leaf and then the package, and encodes it.
func (k KeyPackage) Signed(key ed25519.PrivateKey) []byte {
	k.SignLeaf(Ed25519(key))
	k.Sign(Ed25519(key))
	return k.Encode()
}

// SignLeaf signs the leaf as it is.
func (k *KeyPackage) SignLeaf(sign Signer) {
	k.Leaf.Signature = sign(Labelled("LeafNodeTBS", k.Leaf.unsigned()))
}

// Sign signs the package as it is, with the leaf's signature in it.
func (k *KeyPackage) Sign(sign Signer) {
	k.Signature = sign(Labelled("KeyPackageTBS", k.unsigned()))
}

// Labelled returns what MLS signs for a content (RFC 9420, section 5.1.2).
func Labelled(label string, content []byte) []byte {
	return slices.Concat(Vector([]byte("MLS 1.0 "+label)), Vector(content))
}

// Encode returns the bytes of the package, signed or not.
func (k KeyPackage) Encode() []byte {
	return append(k.unsigned(), Vector(k.Signature)...)
}

func (k KeyPackage) unsigned() []byte {
	var w writer
	w.uint16(k.Version)
	w.uint16(k.CipherSuite)
	w.vector(k.InitKey)
	w.raw(k.Leaf.Encode())
	w.extensions(k.Extensions)
	return w.bytes
}

// Encode returns the bytes of the leaf, signed or not.
func (l LeafNode) Encode() []byte {
	return append(l.unsigned(), Vector(l.Signature)...)
}

func (l LeafNode) unsigned() []byte {
	var w writer
	w.vector(l.EncryptionKey)
	w.vector(l.SignatureKey)
	w.uint16(l.CredentialType)
	w.vector(l.Credential)
	w.codes(l.Capabilities.Versions)
	w.codes(l.Capabilities.CipherSuites)
	w.codes(l.Capabilities.Extensions)
	w.codes(l.Capabilities.Proposals)
	w.codes(l.Capabilities.Credentials)
	w.uint8(l.Source)
	switch l.Source {
	case SourceKeyPackage:
		w.uint64(l.NotBefore)
		w.uint64(l.NotAfter)
	case SourceCommit:
		w.vector(l.ParentHash)
	}
	w.extensions(l.Extensions)
	return w.bytes
}
