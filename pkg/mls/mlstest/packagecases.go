package mlstest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// anyTime is for packages whose lifetime nobody looks at.
var anyTime = time.Unix(1_800_000_000, 0)

// KeyPackageCase is a key package and what the backend makes of it. Its name
// begins with the number of the edge case it stands for.
type KeyPackageCase struct {
	Name string
	Data []byte
	// Reason is NoReason for a package that is accepted. MalformedPayload comes
	// from the parse, InvalidKeyPackage from the checks after it.
	Reason fault.Reason
	// Key is the installation key of a package that parses.
	Key ed25519.PublicKey
}

// packageCases collects cases about packages of one installation.
type packageCases struct {
	maker *Maker
	key   ed25519.PrivateKey
	inbox string
	now   time.Time
	cases []KeyPackageCase
}

// KeyPackageCases returns the edge cases of key packages, 30 to 59, for a
// server whose clock says now.
func (m *Maker) KeyPackageCases(now time.Time) []KeyPackageCase {
	c := &packageCases{maker: m, key: m.InstallationKey(), inbox: m.InboxID(), now: now}
	c.decoding()
	c.suites()
	c.signatures()
	c.fields()
	c.extensions()
	c.extensionData()
	c.tolerated()
	c.lifetimes()
	c.credentials()
	c.keys()
	return c.cases
}

func (c *packageCases) add(name string, reason fault.Reason, data []byte) {
	c.cases = append(c.cases, KeyPackageCase{
		Name: name, Data: data, Reason: reason, Key: c.key.Public().(ed25519.PublicKey),
	})
}

// changed adds a package that is changed before it is signed.
func (c *packageCases) changed(name string, reason fault.Reason, change func(*KeyPackage)) {
	k := c.fresh()
	change(&k)
	c.add(name, reason, k.Signed(c.key))
}

func (c *packageCases) fresh() KeyPackage {
	return c.maker.KeyPackage(c.key, c.inbox, c.now)
}

func (c *packageCases) signed() KeyPackage {
	k := c.fresh()
	k.SignLeaf(Ed25519(c.key))
	k.Sign(Ed25519(c.key))
	return k
}

func (c *packageCases) decoding() {
	whole := c.signed().Encode()
	c.add("30 fresh", fault.NoReason, whole)
	c.add("31 trailing byte", fault.MalformedPayload, append(slices.Clone(whole), 0))
	c.add("31 last byte missing", fault.MalformedPayload, whole[:len(whole)-1])
	wrapper := GroupMessage{Version: 1, WireFormat: WireKeyPackage}.Encode()
	c.add("32 wrapped in an MLSMessage", fault.MalformedPayload, append(wrapper, whole...))
	c.add("59 empty", fault.MalformedPayload, []byte{})
	c.add("59 none", fault.MalformedPayload, nil)
}

func (c *packageCases) suites() {
	suite := func(s uint16) func(*KeyPackage) {
		return func(k *KeyPackage) { k.CipherSuite = s }
	}
	for _, s := range []uint16{1, 0x4d, 0x4e, 0x4f, 0xf042} {
		c.changed(fmt.Sprintf("33 suite 0x%04x with Ed25519", s), fault.NoReason, suite(s))
	}
	c.add("34 suite 2 with P-256", fault.MalformedPayload, c.p256().Encode())
	for _, s := range []uint16{2, 4, 5, 6, 7, 0x42, 0x50, 0x51, 0x52, 0x906, 0x907} {
		c.changed(fmt.Sprintf("34 suite 0x%04x with an Ed25519 key", s), fault.InvalidKeyPackage, suite(s))
	}
	for _, s := range []uint16{0, 8, 0x43, 0x53, 0x905, 0x908, 0x7777, 0x0a0a, 0xeaea} {
		c.changed(fmt.Sprintf("35 suite 0x%04x", s), fault.MalformedPayload, suite(s))
	}
}

// p256 returns a package that is right in all but its kind of key.
func (c *packageCases) p256() KeyPackage {
	k := c.fresh()
	k.CipherSuite = 2
	secret := c.maker.Bytes(32)
	secret[0] = 0 // below the order of the curve
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), secret)
	if err != nil {
		panic(fmt.Sprintf("32 bytes below the order are a P-256 key: %v", err))
	}
	if k.Leaf.SignatureKey, err = key.PublicKey.Bytes(); err != nil {
		panic(fmt.Sprintf("encode a P-256 key: %v", err))
	}
	sign := func(message []byte) []byte {
		digest := sha256.Sum256(message)
		signature, err := key.Sign(nil, digest[:], crypto.SHA256) // deterministic, RFC 6979
		if err != nil {
			panic(fmt.Sprintf("sign with a P-256 key: %v", err))
		}
		return signature
	}
	k.SignLeaf(sign)
	k.Sign(sign)
	return k
}

func (c *packageCases) signatures() {
	k := c.fresh()
	k.SignLeaf(Ed25519(c.key))
	k.Leaf.Signature[17] ^= 1
	k.Sign(Ed25519(c.key))
	c.add("36 bit of the leaf signature flipped", fault.InvalidKeyPackage, k.Encode())

	k = c.signed()
	k.Signature[17] ^= 1
	c.add("37 bit of the outer signature flipped", fault.InvalidKeyPackage, k.Encode())

	k = c.signed()
	k.Sign(Ed25519(c.maker.InstallationKey()))
	c.add("38 outer signature of another key", fault.InvalidKeyPackage, k.Encode())

	k = c.signed()
	k.Signature = append(k.Signature, 0)
	c.add("37 outer signature of 65 bytes", fault.InvalidKeyPackage, k.Encode())
	k.Signature = nil
	c.add("37 outer signature empty", fault.InvalidKeyPackage, k.Encode())

	k = c.signed()
	k.Signature = ed25519.Sign(c.key, k.unsigned())
	c.add("37 outer signature without its label", fault.InvalidKeyPackage, k.Encode())
	k.Signature = ed25519.Sign(c.key, Labelled("LeafNodeTBS", k.unsigned()))
	c.add("37 outer signature with the leaf's label", fault.InvalidKeyPackage, k.Encode())
}

func (c *packageCases) fields() {
	c.changed("39 version 2", fault.InvalidKeyPackage, func(k *KeyPackage) { k.Version = 2 })
	c.changed("40 init key is the encryption key", fault.InvalidKeyPackage, func(k *KeyPackage) {
		k.InitKey = k.Leaf.EncryptionKey
	})
	for _, source := range []uint8{SourceUpdate, SourceCommit} {
		c.changed(fmt.Sprintf("41 leaf node source %d", source), fault.InvalidKeyPackage, func(k *KeyPackage) {
			k.Leaf.Source = source
		})
	}
	c.changed("41 leaf node source 0", fault.MalformedPayload, func(k *KeyPackage) { k.Leaf.Source = 0 })
	c.changed("41 leaf node source 4", fault.MalformedPayload, func(k *KeyPackage) { k.Leaf.Source = 4 })
}

func (c *packageCases) extensions() {
	outer := func(types ...uint16) func(*KeyPackage) {
		return func(k *KeyPackage) {
			for _, t := range types {
				k.Extensions = append(k.Extensions, Extension{Type: t})
			}
		}
	}
	leaf := func(types ...uint16) func(*KeyPackage) {
		return func(k *KeyPackage) {
			for _, t := range types {
				k.Leaf.Extensions = append(k.Leaf.Extensions, Extension{Type: t})
			}
		}
	}
	listed := func(change func(*KeyPackage), types ...uint16) func(*KeyPackage) {
		return func(k *KeyPackage) {
			change(k)
			k.Leaf.Capabilities.Extensions = append(k.Leaf.Capabilities.Extensions, types...)
		}
	}
	c.changed("42 outer extension not listed", fault.InvalidKeyPackage, outer(0xff77))
	c.changed("42 outer extension listed", fault.NoReason, listed(outer(0xff77), 0xff77))
	c.changed("43 last resort not listed", fault.InvalidKeyPackage, func(k *KeyPackage) {
		k.Leaf.Capabilities.Extensions = k.Leaf.Capabilities.Extensions[1:]
	})
	c.changed("43 last resort alone", fault.NoReason, func(k *KeyPackage) { k.Extensions = k.Extensions[:1] })
	c.changed("44 unknown leaf extension not listed", fault.NoReason, leaf(0xff77))
	c.changed("44 GREASE leaf extension", fault.NoReason, leaf(0x3a3a))
	c.changed("45 outer application id", fault.InvalidKeyPackage, func(k *KeyPackage) {
		k.Extensions = append(k.Extensions, k.Leaf.Extensions[0])
	})
	for _, t := range []uint16{2, 3, 4, 5, 0xf000} {
		c.changed(fmt.Sprintf("45 outer extension 0x%04x", t), fault.InvalidKeyPackage, listed(outer(t), t))
	}
	for _, t := range []uint16{2, 3, 4, 5, ExtensionLastResort, 0xf000} {
		c.changed(fmt.Sprintf("45 leaf extension 0x%04x", t), fault.MalformedPayload, listed(leaf(t), t))
	}
	c.changed("46 outer extension twice", fault.MalformedPayload, outer(ExtensionLastResort))
	c.changed("46 leaf extension twice", fault.MalformedPayload, leaf(0xff77, 0xff77))
	many := make([]uint16, 40)
	for i := range many {
		many[i] = 0xe000 + uint16(i)
	}
	c.changed("46 many leaf extensions", fault.NoReason, leaf(many...))
	c.changed("46 many leaf extensions, first one again", fault.MalformedPayload, leaf(slices.Concat(many, many[:1])...))
	c.changed("47 GREASE outer extension", fault.InvalidKeyPackage, listed(outer(0x0a0a), 0x0a0a))
	c.changed("47 look-alikes of GREASE", fault.NoReason, listed(outer(0xfafa, 0x0a1a), 0xfafa, 0x0a1a))
	c.changed("47 GREASE in every capability", fault.NoReason, func(k *KeyPackage) {
		all := &k.Leaf.Capabilities
		for i, list := range []*[]uint16{
			&all.Versions, &all.CipherSuites, &all.Extensions, &all.Proposals, &all.Credentials,
		} {
			*list = append(*list, 0x0a0a+0x1010*uint16(i))
		}
	})
}

// extensionData breaks the inside of extensions whose layout is known, and the
// lists around them: shapes that two releases of the clients' library read
// differently.
func (c *packageCases) extensionData() {
	appData := func(data []byte) func(*KeyPackage) {
		return func(k *KeyPackage) {
			k.Leaf.Extensions = append(k.Leaf.Extensions, Extension{ExtensionAppData, data})
		}
	}
	one := slices.Concat([]byte{0x80, 1}, Vector([]byte("one")))
	two := slices.Concat([]byte{0x80, 2}, Vector(nil))
	c.changed("44 app data dictionary", fault.NoReason, appData(Vector(slices.Concat(one, two))))
	c.changed("44 app data dictionary, descending", fault.MalformedPayload, appData(Vector(slices.Concat(two, one))))
	c.changed("44 app data dictionary, same id twice", fault.MalformedPayload, appData(Vector(slices.Concat(one, one))))
	c.changed("44 app data dictionary, trailing byte", fault.MalformedPayload, appData(append(Vector(one), 0)))
	c.changed("44 app data dictionary, cut off", fault.MalformedPayload, appData(Vector(one)[:4]))
	c.changed("43 last resort with data", fault.MalformedPayload, func(k *KeyPackage) {
		k.Extensions[0].Data = []byte{0}
	})
	c.changed("44 application id, trailing byte", fault.MalformedPayload, func(k *KeyPackage) {
		k.Leaf.Extensions[0].Data = append(k.Leaf.Extensions[0].Data, 0)
	})
	c.changed("44 application id empty", fault.MalformedPayload, func(k *KeyPackage) {
		k.Leaf.Extensions[0].Data = nil
	})
	// The outer list ends one byte into the data of its last extension.
	k := c.fresh()
	k.Extensions = []Extension{{ExtensionPointeeAEAD, []byte{1}}}
	encoded := k.unsigned()
	encoded[len(encoded)-len(Extensions(k.Extensions))]--
	c.add("46 last extension overruns its list", fault.MalformedPayload, append(encoded, Vector(c.maker.Bytes(64))...))
	c.add("48 capability list of odd length", fault.MalformedPayload, c.oddCapability())
}

// oddCapability takes a byte from the list of versions.
func (c *packageCases) oddCapability() []byte {
	k := c.fresh()
	// Version, suite, init key, encryption key, signature key, credential.
	at := 2 + 2 + 33 + 33 + 33 + 2 + len(Vector(k.Leaf.Credential))
	data := k.Signed(c.key)
	return slices.Concat(data[:at], []byte{1, 1}, data[at+3:])
}

// tolerated are packages that a stricter backend would refuse and that clients
// rely on being able to publish.
func (c *packageCases) tolerated() {
	c.changed("48 capabilities without version 1", fault.NoReason, func(k *KeyPackage) {
		k.Leaf.Capabilities.Versions = nil
	})
	c.changed("48 capabilities without the suite", fault.NoReason, func(k *KeyPackage) {
		k.Leaf.Capabilities.CipherSuites = []uint16{1}
	})
	c.changed("48 capabilities without the credential type", fault.NoReason, func(k *KeyPackage) {
		k.Leaf.Capabilities.Credentials = []uint16{2}
	})
	c.changed("48 capabilities without the leaf's extension", fault.NoReason, func(k *KeyPackage) {
		k.Leaf.Capabilities.Extensions = slices.DeleteFunc(k.Leaf.Capabilities.Extensions,
			func(t uint16) bool { return t == ExtensionApplicationID })
	})
	c.changed("43 no last resort", fault.NoReason, func(k *KeyPackage) { k.Extensions = nil })
	c.changed("43 no leaf extension", fault.NoReason, func(k *KeyPackage) { k.Leaf.Extensions = nil })
	c.changed("40 odd lengths of HPKE keys", fault.NoReason, func(k *KeyPackage) {
		k.InitKey, k.Leaf.EncryptionKey = nil, c.maker.Bytes(100)
	})
	c.changed("44 garbage in welcome extensions", fault.NoReason, func(k *KeyPackage) {
		k.Extensions[1].Data, k.Extensions[2].Data = []byte{0xff}, nil
	})
}

func (c *packageCases) lifetimes() {
	now := uint64(c.now.Unix())
	const day = 24 * 60 * 60
	for _, l := range []struct {
		name                string
		notBefore, notAfter uint64
		reason              fault.Reason
	}{
		{"49 ends now", now - 10, now, fault.InvalidKeyPackage},
		{"49 ends in a second", now - 10, now + 1, fault.NoReason},
		{"50 begins now", now, now + 10, fault.NoReason},
		{"50 begins in a second", now + 1, now + 10, fault.InvalidKeyPackage},
		{"50 ends before it begins", now, now - 10, fault.InvalidKeyPackage},
		{"51 all time", 0, 1<<64 - 1, fault.NoReason},
		{"51 begins at the end of time", 1<<64 - 1, 1<<64 - 1, fault.InvalidKeyPackage},
		{"52 ten years", now - 1, now + 3652*day, fault.NoReason},
		{"52 180 days and an hour", now - 3600, now + 180*day, fault.NoReason},
	} {
		c.changed(l.name, l.reason, func(k *KeyPackage) {
			k.Leaf.NotBefore, k.Leaf.NotAfter = l.notBefore, l.notAfter
		})
	}
}

func (c *packageCases) credentials() {
	c.changed("53 X.509 credential", fault.InvalidKeyPackage, func(k *KeyPackage) { k.Leaf.CredentialType = 2 })
	c.changed("53 GREASE credential", fault.InvalidKeyPackage, func(k *KeyPackage) { k.Leaf.CredentialType = 0x0a0a })
	for _, p := range []struct {
		name     string
		identity []byte
		reason   fault.Reason
	}{
		{"54 identity is not protobuf", []byte{0xff}, fault.InvalidKeyPackage},
		{"54 inbox id cut off", []byte{0x0a, 5, 'a'}, fault.InvalidKeyPackage},
		{"54 inbox id is not UTF-8", []byte{0x0a, 1, 0xff}, fault.InvalidKeyPackage},
		{"54 inbox id is a number", []byte{0x08, 1}, fault.InvalidKeyPackage},
		{"54 unknown field cut off", append(Credential(c.inbox), 0x12), fault.InvalidKeyPackage},
		{"55 inbox id is not hex", Credential("not-hex"), fault.NoReason},
		{"55 identity is empty", nil, fault.NoReason},
		{"55 unknown field", append(Credential(c.inbox), 0x10, 1), fault.NoReason},
		{"55 another inbox id than the application id", Credential(c.maker.InboxID()), fault.NoReason},
	} {
		c.changed(p.name, p.reason, func(k *KeyPackage) { k.Leaf.Credential = p.identity })
	}
}

func (c *packageCases) keys() {
	former := c.key
	c.key = c.maker.InstallationKey()
	c.add("56 installation of no inbox", fault.NoReason, c.maker.SignedKeyPackage(c.key, c.maker.InboxID(), c.now))
	c.key = former

	for _, length := range []int{0, 31, 33} {
		c.changed(fmt.Sprintf("58 signature key of %d bytes", length), fault.MalformedPayload, func(k *KeyPackage) {
			k.Leaf.SignatureKey = c.maker.Bytes(length)
		})
	}
	// The identity is a key of order one, for which R = identity and S = 0 hold
	// for every message.
	identity := append([]byte{1}, make([]byte, 31)...)
	trivial := func([]byte) []byte { return append(slices.Clone(identity), make([]byte, 32)...) }
	k := c.fresh()
	k.Leaf.SignatureKey = identity
	k.SignLeaf(trivial)
	k.Sign(trivial)
	c.add("57 key of small order", fault.InvalidKeyPackage, k.Encode())
	c.cases[len(c.cases)-1].Key = identity
}
