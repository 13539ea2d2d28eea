package association

import (
	"encoding/hex"
	"errors"
	"strconv"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"golang.org/x/crypto/sha3"
)

const (
	// addressLength is 0x and 40 hex digits.
	addressLength = 42
	// recoverableLength is r, s and v.
	recoverableLength = 65
	// vAt is where v stands.
	vAt = recoverableLength - 1
	// compactOffset is what the recovery code of decred's form starts from.
	compactOffset = 27
)

func keccak256(parts ...[]byte) (sum [32]byte) {
	hash := sha3.NewLegacyKeccak256()
	for _, part := range parts {
		_, _ = hash.Write(part) // a hash never fails
	}
	hash.Sum(sum[:0])
	return sum
}

// hashPersonalMessage is the digest of EIP-191 version 0x45.
func hashPersonalMessage(text []byte) [32]byte {
	prefix := strconv.AppendInt([]byte("\x19Ethereum Signed Message:\n"), int64(len(text)), 10)
	return keccak256(prefix, text)
}

// walletSignature is r, an s in the lower half of its range, and a parity of 0 or
// 1: the one form that all encodings of a signature have in common.
type walletSignature [recoverableLength]byte

var errV = errors.New("has a v that is none of 0, 1, 27 and 28")

// canonicalV0V1V27V28 brings a signature whose v is 0, 1, 27 or 28 into its one
// form: if s is in the upper half, its negative belongs to the other parity.
func canonicalV0V1V27V28(rsv []byte) (walletSignature, error) {
	if len(rsv) != recoverableLength {
		return walletSignature{}, errors.New("has " + strconv.Itoa(len(rsv)) + " bytes, expected 65: r, s and v")
	}
	parity := rsv[vAt]
	if parity == 27 || parity == 28 {
		parity -= 27
	}
	if parity > 1 {
		return walletSignature{}, errV
	}
	canonical, wasHigh := lower(rsv)
	canonical[vAt] = parity
	if wasHigh {
		canonical[vAt] ^= 1
	}
	return canonical, nil
}

// recoverSignerV0V1V27V28 returns the lower-case address whose key made a signature
// over the hash, and the bytes under which the signature counts as used in every
// encoding of it (IDENT-030, IDENT-050).
func recoverSignerV0V1V27V28(hash *[32]byte, rsv []byte) (address, used string, err error) {
	canonical, err := canonicalV0V1V27V28(rsv)
	if err != nil {
		return "", "", err
	}
	address, err = canonical.recover(hash)
	return address, string(canonical[:]), err
}

// lower returns r and the smaller of s and its negative, without a parity, and
// whether that is the negative.
func lower(rsv []byte) (low walletSignature, wasHigh bool) {
	copy(low[:vAt], rsv)
	var s secp256k1.ModNScalar
	if tooLarge := s.SetByteSlice(rsv[32:vAt]); tooLarge || !s.IsOverHalfOrder() {
		return low, false
	}
	s.Negate().PutBytesUnchecked(low[32:vAt])
	return low, true
}

// recover returns the lower-case address whose key made the signature.
func (w *walletSignature) recover(hash *[32]byte) (address string, err error) {
	var compact [recoverableLength]byte
	compact[0] = compactOffset + w[vAt]
	copy(compact[1:], w[:vAt])
	key, _, err := ecdsa.RecoverCompact(compact[:], hash[:])
	if err != nil {
		return "", errors.New("is no ECDSA signature: r or s is out of range or no key fits")
	}
	return addressOf(key), nil
}

// addressOf is the Ethereum address of a key in lower case.
func addressOf(key *secp256k1.PublicKey) string {
	hash := keccak256(key.SerializeUncompressed()[1:])
	var text [addressLength]byte
	text[0], text[1] = '0', 'x'
	hex.Encode(text[2:], hash[12:])
	return string(text[:])
}
