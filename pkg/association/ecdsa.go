package association

import (
	"encoding/hex"
	"errors"
	"strconv"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"golang.org/x/crypto/sha3"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/message_contents"
)

const (
	// addressLength is 0x and 40 hex digits.
	addressLength = 42
	// recoverableLength is r, s and v.
	recoverableLength = 65
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

// recoverSigner returns the lower-case address whose key made a signature of r,
// s and v over the hash, and the signature with s brought into the lower half.
//
// The sign of v is deliberately left alone when s is, as the clients do it: a
// high s with the v of the low one is good, one with its own v recovers some
// other address.
func recoverSigner(hash *[32]byte, rsv []byte) (address, normalized string, err error) {
	if len(rsv) != recoverableLength {
		return "", "", errors.New("has " + strconv.Itoa(len(rsv)) + " bytes, expected 65: r, s and v")
	}
	parity, ok := parityOf(rsv[64])
	if !ok {
		return "", "", errors.New("has a v of " + strconv.Itoa(int(rsv[64])) + ", expected 0, 1, 27, 28 or at least 35")
	}
	var compact [recoverableLength]byte
	compact[0] = compactOffset + parity
	copy(compact[1:], rsv[:64])
	var s secp256k1.ModNScalar
	if tooLarge := s.SetByteSlice(rsv[32:64]); !tooLarge && s.IsOverHalfOrder() {
		s.Negate().PutBytesUnchecked(compact[33:])
	}
	key, _, err := ecdsa.RecoverCompact(compact[:], hash[:])
	if err != nil {
		return "", "", errors.New("is no ECDSA signature: r or s is out of range or no key fits")
	}
	address = addressOf(key)
	copy(compact[:], compact[1:])
	compact[64] = rsv[64]
	return address, string(compact[:]), nil
}

func parityOf(v byte) (parity byte, ok bool) {
	switch {
	case v == 0, v == 1:
		return v, true
	case v == 27, v == 28:
		return v - 27, true
	case v >= 35:
		return (v - 35) % 2, true
	default:
		return 0, false
	}
}

// addressOf is the Ethereum address of a key in lower case.
func addressOf(key *secp256k1.PublicKey) string {
	hash := keccak256(key.SerializeUncompressed()[1:])
	var text [addressLength]byte
	text[0], text[1] = '0', 'x'
	hex.Encode(text[2:], hash[12:])
	return string(text[:])
}

// recoverDelegator returns the address of the wallet that signed a legacy key,
// and that signature with its s in the lower half.
func recoverDelegator(key *message_contents.SignedPublicKey) (address, normalized string, err error) {
	compact, recovery, ok := walletSignature(key.GetSignature())
	if !ok {
		return "", "", errors.New("has a delegated key that no wallet signed")
	}
	text := make([]byte, 0, 96+2*len(key.GetKeyBytes()))
	text = append(text, "XMTP : Create Identity\n"...)
	text = hex.AppendEncode(text, key.GetKeyBytes())
	text = append(text, "\n\nFor more info: https://xmtp.org/signatures/"...)
	hash := hashPersonalMessage(text)
	rsv := append(make([]byte, 0, recoverableLength), compact...)
	address, normalized, err = recoverSigner(&hash, append(rsv, byte(recovery)))
	if err != nil {
		return "", "", errors.New("has a delegated key whose wallet signature " + err.Error())
	}
	return address, normalized, nil
}

func walletSignature(wire *message_contents.Signature) (compact []byte, recovery uint32, ok bool) {
	switch union := wire.GetUnion().(type) {
	case *message_contents.Signature_EcdsaCompact:
		return union.EcdsaCompact.GetBytes(), union.EcdsaCompact.GetRecovery(), true
	case *message_contents.Signature_WalletEcdsaCompact:
		return union.WalletEcdsaCompact.GetBytes(), union.WalletEcdsaCompact.GetRecovery(), true
	default:
		return nil, 0, false
	}
}

// checkDelegated proves that the delegated key signed the update.
func checkDelegated(hash *[32]byte, wire *associations.LegacyDelegatedSignature) error {
	signer, _, err := recoverSigner(hash, wire.GetSignature().GetBytes())
	if err != nil {
		return err
	}
	var unsigned message_contents.UnsignedPublicKey
	if proto.Unmarshal(wire.GetDelegatedKey().GetKeyBytes(), &unsigned) != nil {
		return errors.New("has a delegated key that does not decode")
	}
	point := unsigned.GetSecp256K1Uncompressed().GetBytes()
	key, err := parsePoint(point)
	if err != nil {
		return err
	}
	if addressOf(key) != signer {
		return errors.New("was not made by the delegated key")
	}
	return nil
}

// parsePoint reads a secp256k1 point in SEC 1 form. The hybrid form, which the
// library would take, is refused: no other implementation of this protocol
// takes it.
func parsePoint(point []byte) (*secp256k1.PublicKey, error) {
	if len(point) == 0 || point[0] == secp256k1.PubKeyFormatHybridEven || point[0] == secp256k1.PubKeyFormatHybridOdd {
		return nil, errNoPoint
	}
	key, err := secp256k1.ParsePubKey(point)
	if err != nil {
		return nil, errNoPoint
	}
	return key, nil
}

var errNoPoint = errors.New("has a delegated key that is no secp256k1 point")
