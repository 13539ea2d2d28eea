package association

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"unicode/utf8"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"

	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// p256Length is the length of a P-256 scalar or coordinate in bytes.
const p256Length = 32

// halfP256Order is half the order of P-256, rounded down, big-endian.
const halfP256Order = "\x7f\xff\xff\xff\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff" +
	"\xde\x73\x7d\x56\xd3\x8b\xcf\x42\x79\xdc\xe5\x61\x7e\x31\x92\xa8"

func challengeOf(text []byte) string { return base64.RawURLEncoding.EncodeToString(text) }

// checkPasskey proves that the named passkey signed the challenge. What else an
// authenticator says (type, origin, relying party, flags, counter) is not looked
// at.
func checkPasskey(challenge string, wire *associations.RecoverablePasskeySignature) error {
	got, err := readClientData(wire.GetClientDataJson())
	if err != nil {
		return err
	}
	if got != challenge {
		return errors.New("has a challenge that is not the text of the update in base64url without padding")
	}
	key, err := parsePasskey(wire.GetPublicKey())
	if err != nil {
		return err
	}
	clientData := sha256.Sum256(wire.GetClientDataJson())
	signed := sha256.New()
	_, _ = signed.Write(wire.GetAuthenticatorData())
	_, _ = signed.Write(clientData[:])
	if !ecdsa.VerifyASN1(key, signed.Sum(nil), wire.GetSignature()) {
		return errors.New("does not verify: expected ECDSA by the named passkey over authenticator data and client data")
	}
	return nil
}

// parsePasskey reads a P-256 point in SEC 1 form, compressed or not.
func parsePasskey(point []byte) (*ecdsa.PublicKey, error) {
	if len(point) == 1+p256Length {
		x, y := elliptic.UnmarshalCompressed(elliptic.P256(), point)
		if x == nil {
			return nil, errNoPasskey
		}
		point = append(make([]byte, 0, 1+2*p256Length), 4)
		point = append(point, x.FillBytes(make([]byte, p256Length))...)
		point = append(point, y.FillBytes(make([]byte, p256Length))...)
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return nil, errNoPasskey
	}
	return key, nil
}

var errNoPasskey = errors.New("has a public key that is no P-256 point")

// canonicalPasskeySignature returns r and the smaller of s and its negative, 32
// bytes each: with one of them anybody can make the other, and both verify. Two DER
// forms of the same pair of numbers do not exist.
func canonicalPasskeySignature(der []byte) (string, error) {
	var inner cryptobyte.String
	var r, s []byte
	input := cryptobyte.String(der)
	if !input.ReadASN1(&inner, asn1.SEQUENCE) || !input.Empty() ||
		!inner.ReadASN1Integer(&r) || !inner.ReadASN1Integer(&s) || !inner.Empty() ||
		len(r) > p256Length || len(s) > p256Length {
		return "", errors.New("is not a DER signature of two numbers of at most 32 bytes")
	}
	var raw [2 * p256Length]byte
	copy(raw[p256Length-len(r):], r)
	copy(raw[2*p256Length-len(s):], s)
	if string(raw[p256Length:]) > halfP256Order {
		negative := new(big.Int).SetBytes(s)
		if negative.Sub(elliptic.P256().Params().N, negative).Sign() < 0 {
			return "", errors.New("has an s that is out of range")
		}
		negative.FillBytes(raw[p256Length:])
	}
	return string(raw[:]), nil
}

var errClientData = errors.New("has client data that is not a JSON object with one origin and one challenge, both text")

// readClientData returns the challenge of a WebAuthn client data object. It
// goes by tokens since encoding/json matches names in any case and takes the
// last of several. Syntax is checked beforehand, as a whole.
func readClientData(data []byte) (challenge string, err error) {
	if !utf8.Valid(data) || !json.Valid(data) {
		return "", errClientData
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return "", errClientData
	}
	var seenOrigin, seenChallenge bool
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return "", errClientData
		}
		seen := &seenChallenge
		switch name {
		case "challenge":
		case "origin":
			seen = &seenOrigin
		default:
			var other json.RawMessage
			if decoder.Decode(&other) != nil {
				return "", errClientData
			}
			continue
		}
		value, err := decoder.Token()
		text, isText := value.(string)
		if err != nil || !isText || *seen {
			return "", errClientData
		}
		*seen = true
		if name == "challenge" {
			challenge = text
		}
	}
	if _, err := decoder.Token(); err != nil { // the closing brace
		return "", errClientData
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) || !seenOrigin || !seenChallenge {
		return "", errClientData
	}
	return challenge, nil
}
