package mls

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
)

// validate parses and validates, as a publish does.
func validate(data []byte, now time.Time) error {
	k, err := ParseKeyPackage(data)
	if err != nil {
		return err
	}
	return k.Validate(now)
}

// Proves API-042.
func TestKeyPackageEdgeCases(t *testing.T) {
	t.Parallel()
	// The clock is read in whole seconds: a fraction changes nothing.
	for _, now := range []time.Time{recordedNow, recordedNow.Add(999 * time.Millisecond)} {
		for _, c := range mlstest.New(1).KeyPackageCases(now) {
			t.Run(fmt.Sprint(now.Nanosecond(), " ", c.Name), func(t *testing.T) {
				t.Parallel()
				k, err := ParseKeyPackage(c.Data)
				if c.Reason == fault.MalformedPayload {
					requireReason(t, err, fault.MalformedPayload)
					return
				}
				require.NoError(t, err)
				require.Equal(t, []byte(c.Key), keyOf(k))
				if c.Reason != fault.NoReason {
					requireReason(t, k.Validate(now), c.Reason)
					return
				}
				require.NoError(t, k.Validate(now))
			})
		}
	}
}

func keyOf(k KeyPackage) []byte {
	key := k.InstallationKey()
	return key[:]
}

// Proves API-042.
func TestRecordedKeyPackages(t *testing.T) {
	t.Parallel()
	packages := readRecorded(t, "key_package")
	require.Len(t, packages, 45)
	for _, payload := range packages {
		facts := payload.facts(t)
		k, err := ParseKeyPackage(payload.data)
		require.NoError(t, err, payload.ID)
		require.NoError(t, k.Validate(recordedNow), payload.ID)
		require.Equal(t, facts.InstallationID, hex.EncodeToString(keyOf(k)), payload.ID)
		require.Equal(t, payload.data, encodeFacts(t, facts, k), payload.ID)

		requireReason(t, k.Validate(time.Unix(int64(facts.NotAfter), 0)), fault.InvalidKeyPackage)
		require.NoError(t, k.Validate(time.Unix(int64(facts.NotAfter)-1, 0)), payload.ID)
		require.NoError(t, k.Validate(time.Unix(int64(facts.NotBefore), 0)), payload.ID)
		requireReason(t, k.Validate(time.Unix(int64(facts.NotBefore)-1, 0)), fault.InvalidKeyPackage)
	}
}

// encodeFacts builds a key package from what the manifest knows of it, and
// takes only signatures and large extensions from the parse. If the bytes are
// those that the client sent, the parser read every field right, and the test
// kit writes as the client does.
func encodeFacts(t *testing.T, facts recordedFacts, parsed KeyPackage) []byte {
	t.Helper()
	k := mlstest.KeyPackage{
		Version:     facts.ProtocolVersion,
		CipherSuite: facts.CipherSuite,
		InitKey:     unhex(t, facts.InitKey),
		Leaf: mlstest.LeafNode{
			EncryptionKey:  unhex(t, facts.EncryptionKey),
			SignatureKey:   unhex(t, facts.InstallationID),
			CredentialType: facts.CredentialType,
			Credential:     mlstest.Credential(facts.InboxID),
			Capabilities:   mlstest.Capabilities(facts.Capabilities),
			Source:         facts.LeafNodeSource,
			NotBefore:      facts.NotBefore,
			NotAfter:       facts.NotAfter,
			Signature:      parsed.leaf.signature,
		},
		Signature: parsed.signature,
	}
	for name, data := range facts.LeafExtensions {
		require.Len(t, facts.LeafExtensions, 1, "a map has no order")
		k.Leaf.Extensions = append(k.Leaf.Extensions, mlstest.Extension{Type: code(t, name), Data: unhex(t, data)})
	}
	require.Equal(t, len(facts.PackageExtensions), countOf(parsed.extensions))
	for rest := parsed.extensions; len(rest) > 0; {
		r := newReader("extension", rest)
		kind, data := r.uint16("type"), r.vector("data")
		known, ok := facts.PackageExtensions[fmt.Sprintf("0x%04x", kind)]
		require.True(t, ok, "extension %04x", kind)
		if digest, isDigest := strings.CutPrefix(known, "sha256:"); isDigest {
			sum := sha256.Sum256(data)
			require.Equal(t, digest, hex.EncodeToString(sum[:]))
		} else {
			require.Equal(t, known, hex.EncodeToString(data))
		}
		k.Extensions = append(k.Extensions, mlstest.Extension{Type: kind, Data: data})
		rest = rest[r.at:]
	}
	// What Validate goes by, once more from the parse.
	require.Equal(t, k.Leaf.Credential, parsed.leaf.identity)
	require.Equal(t, k.InitKey, parsed.initKey)
	require.Equal(t, k.Leaf.EncryptionKey, parsed.leaf.encryptionKey)
	require.Equal(t, facts.CipherSuite, parsed.suite)
	require.Equal(t, facts.ProtocolVersion, parsed.version)
	require.Equal(t, facts.LeafNodeSource, parsed.leaf.source)
	require.Equal(t, facts.CredentialType, parsed.leaf.credentialType)
	require.Equal(t, []uint64{facts.NotBefore, facts.NotAfter}, []uint64{parsed.leaf.notBefore, parsed.leaf.notAfter})
	return k.Encode()
}

func countOf(list extensionList) (count int) {
	for ; len(list) > 0; count++ {
		_, list = list.next()
	}
	return count
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	require.NoError(t, err)
	return data
}

func code(t *testing.T, text string) uint16 {
	t.Helper()
	value, err := strconv.ParseUint(text, 0, 16)
	require.NoError(t, err)
	return uint16(value)
}

func TestKeyPackageVectors(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		file         string
		installation string
		first, last  int64
	}{
		{"key_package_row1.hex", "a771e3e5ff97f6ca754ffd81171d1032059af0372335ed546999ac9e17fe46b5", 1717190928, 1732746527},
		{"key_package_row7.hex", "b8bdd05c9214d040f23dc6dd3ec100cad448ebf94cd2859db943d2dd3c97cf87", 1717322038, 1732877637},
	} {
		k, err := ParseKeyPackage(readHex(t, v.file))
		require.NoError(t, err)
		require.Equal(t, v.installation, hex.EncodeToString(keyOf(k)))
		require.NoError(t, k.Validate(time.Unix(v.first, 0)))
		require.NoError(t, k.Validate(time.Unix(v.last, 0)))
		requireReason(t, k.Validate(time.Unix(v.first-1, 0)), fault.InvalidKeyPackage)
		requireReason(t, k.Validate(time.Unix(v.last+1, 0)), fault.InvalidKeyPackage)
		requireReason(t, k.Validate(time.Unix(-1, 0)), fault.InvalidKeyPackage)
	}
}

// TestFlippedByte changes bytes of recorded packages in turn, each one of a
// signature and of a small package. Every byte is signed or a signature, so none
// can change; one of a signature is always the signature's fault, and never the
// parse's.
func TestFlippedByte(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for _, payload := range readRecorded(t, "key_package") {
		if seen[len(payload.data)] {
			continue
		}
		seen[len(payload.data)] = true
		k, err := ParseKeyPackage(payload.data)
		require.NoError(t, err)
		inSignature := make([]bool, len(payload.data))
		for _, signature := range [][]byte{k.leaf.signature, k.signature} {
			require.Len(t, signature, ed25519.SignatureSize)
			start := bytes.Index(payload.data, signature)
			for i := range signature {
				inSignature[start+i] = true
			}
		}
		data := slices.Clone(payload.data)
		for i := range data {
			if !inSignature[i] && len(data) > 1000 && i%8 != 0 {
				continue // most of a large package is a key that nobody looks into
			}
			data[i] ^= 0x01
			err := validate(data, recordedNow)
			require.Error(t, err, "%s, byte %d", payload.ID, i)
			if inSignature[i] {
				requireReason(t, err, fault.InvalidKeyPackage)
				require.ErrorContains(t, err, "signature")
			}
			data[i] ^= 0x01
		}
	}
	require.Len(t, seen, 3)
}

func TestNoPrefixOfAKeyPackageParses(t *testing.T) {
	t.Parallel()
	for _, payload := range readRecorded(t, "key_package")[:3] {
		for end := range payload.data {
			_, err := ParseKeyPackage(payload.data[:end])
			requireReason(t, err, fault.MalformedPayload)
		}
	}
}

// TestFirstFaultWins has packages with every fault from one check of the
// reference on, and expects that check's.
func TestFirstFaultWins(t *testing.T) {
	t.Parallel()
	maker := mlstest.New(4)
	key := maker.InstallationKey()
	faults := []struct {
		text  string
		spoil func(*mlstest.KeyPackage)
	}{
		{"leaf node source", func(k *mlstest.KeyPackage) { k.Leaf.Source = mlstest.SourceUpdate }},
		{"leaf signature", nil},
		{"protocol version", func(k *mlstest.KeyPackage) { k.Version = 2 }},
		{"init key", func(k *mlstest.KeyPackage) { k.InitKey = k.Leaf.EncryptionKey }},
		{"no place in a key package", func(k *mlstest.KeyPackage) {
			k.Extensions = append(k.Extensions, k.Leaf.Extensions[0])
		}},
		{"the signature is not", nil},
		{"not among the leaf's capabilities", func(k *mlstest.KeyPackage) { k.Leaf.Capabilities.Extensions = nil }},
		{"lifetime ended", func(k *mlstest.KeyPackage) { k.Leaf.NotAfter = 1 }},
		{"credential type", func(k *mlstest.KeyPackage) { k.Leaf.CredentialType = 2 }},
		{"does not decode as an MlsCredential", func(k *mlstest.KeyPackage) { k.Leaf.Credential = []byte{0xff} }},
	}
	for first, expected := range faults {
		k := maker.KeyPackage(key, maker.InboxID(), recordedNow)
		for _, f := range faults[first:] {
			if f.spoil != nil {
				f.spoil(&k)
			}
		}
		k.SignLeaf(mlstest.Ed25519(key))
		if first <= 1 {
			k.Leaf.Signature[0] ^= 1
		}
		k.Sign(mlstest.Ed25519(key))
		if first <= 5 {
			k.Signature[0] ^= 1
		}
		err := validate(k.Encode(), recordedNow)
		requireReason(t, err, fault.InvalidKeyPackage)
		require.ErrorContains(t, err, expected.text)
	}
}

// TestClockBefore1970 has no time before a lifetime that begins at 0.
func TestClockBefore1970(t *testing.T) {
	t.Parallel()
	maker := mlstest.New(12)
	key := maker.InstallationKey()
	k := maker.KeyPackage(key, maker.InboxID(), recordedNow)
	k.Leaf.NotBefore, k.Leaf.NotAfter = 0, 10
	require.NoError(t, validate(k.Signed(key), time.Unix(-1, 0)))
}

func TestKeyPackageErrorsSayWhere(t *testing.T) {
	t.Parallel()
	maker := mlstest.New(5)
	key := maker.InstallationKey()
	k := maker.KeyPackage(key, maker.InboxID(), recordedNow)
	data := k.Signed(key)
	_, err := ParseKeyPackage(append(data[:len(data):len(data)], 1, 2))
	require.EqualError(t, err, fmt.Sprintf("the key package does not parse at byte %d: 2 bytes follow its end, expected none", len(data)))
	_, err = ParseKeyPackage([]byte{0, 1, 0x77, 0x77})
	require.EqualError(t, err, "the key package does not parse at byte 2: the cipher suite 0x7777 does not exist")
	k.Leaf.SignatureKey = maker.Bytes(31)
	_, err = ParseKeyPackage(k.Signed(key))
	require.EqualError(t, err, "the leaf signature key of the key package has 31 bytes, expected 32")
	err = validate(data, recordedNow.Add(mlstest.Lifetime+90*time.Second))
	require.EqualError(t, err, "the key package is not valid: the lifetime ended 90 seconds ago")
}
