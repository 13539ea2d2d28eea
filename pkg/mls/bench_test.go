package mls

import (
	"crypto/ed25519"
	"testing"

	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
)

func BenchmarkParseGroupMessage(b *testing.B) {
	maker := mlstest.New(10)
	for _, c := range []struct {
		name string
		data []byte
	}{
		{"private application", maker.ApplicationMessage(maker.GroupID(), 1, 300)},
		{"private application 900KB", maker.ApplicationMessage(maker.GroupID(), 1, 900_000)},
		{"private commit", maker.CommitMessage(maker.GroupID(), 1)},
		{"public commit", maker.Public(mlstest.ContentCommit, maker.GroupID(), 1, 0).Encode()},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseGroupMessage(c.data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseKeyPackage(b *testing.B) {
	data := readRecorded(b, "key_package")[0].data
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseKeyPackage(data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKeyPackageValidate is a whole validation, parse included. Compare
// with BenchmarkTwoEd25519Verifications: it may cost half as much again.
func BenchmarkKeyPackageValidate(b *testing.B) {
	data := readRecorded(b, "key_package")[0].data
	b.ReportAllocs()
	for b.Loop() {
		if err := validate(data, recordedNow); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTwoEd25519Verifications is what a validation cannot do without: the
// same two signatures over the same messages, by the standard library.
func BenchmarkTwoEd25519Verifications(b *testing.B) {
	k, err := ParseKeyPackage(readRecorded(b, "key_package")[0].data)
	if err != nil {
		b.Fatal(err)
	}
	leaf := mlstest.Labelled("LeafNodeTBS", k.leaf.signed)
	outer := mlstest.Labelled("KeyPackageTBS", k.signed)
	b.ReportAllocs()
	for b.Loop() {
		if !ed25519.Verify(k.leaf.signatureKey, leaf, k.leaf.signature) ||
			!ed25519.Verify(k.leaf.signatureKey, outer, k.signature) {
			b.Fatal("a recorded signature does not verify")
		}
	}
}

// BenchmarkHostile has a time per input byte of the order of a good message's:
// an implementation that searched repeated types or missing capabilities pair
// by pair would take seconds for one.
func BenchmarkHostile(b *testing.B) {
	for name, data := range hostile() {
		if len(data) < 1<<20 {
			continue
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if name == largeKeyPackage {
					if err := validate(data, recordedNow); err != nil {
						b.Fatal(err)
					}
				} else if _, err := ParseGroupMessage(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
