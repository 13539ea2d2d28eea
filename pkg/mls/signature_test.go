package mls

import (
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"filippo.io/edwards25519"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
)

// smallOrder are the encodings of the eight points of small order that
// edwards25519 takes: the canonical ones, then others of the same points.
var smallOrder = []string{
	"0100000000000000000000000000000000000000000000000000000000000000",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"0000000000000000000000000000000000000000000000000000000000000000",
	"0000000000000000000000000000000000000000000000000000000000000080",
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
	"0100000000000000000000000000000000000000000000000000000000000080",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
	"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
	"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
}

// TestSmallOrderKeys finds, for each key of small order, a signature that
// nobody made and that plain Ed25519 accepts.
func TestSmallOrderKeys(t *testing.T) {
	t.Parallel()
	for _, encoded := range smallOrder {
		key := unhex(t, encoded)
		require.True(t, hasSmallOrder(key), encoded)
		signature := make([]byte, ed25519.SignatureSize)
		var message []byte
		for attempt := 0; ; attempt++ {
			require.Less(t, attempt, 1000, "no forgery for %s", encoded)
			message = fmt.Append(nil, "message ", attempt)
			copy(signature, unhex(t, smallOrder[attempt%8]))
			if ed25519.Verify(key, message, signature) {
				break
			}
		}
		require.False(t, newStrictKey(key).verify(message, signature), encoded)
	}
}

// TestSmallOrderKeyWithGoodR signs for the identity as key: R = S·B holds for
// every message, and R is as good as any.
func TestSmallOrderKeyWithGoodR(t *testing.T) {
	t.Parallel()
	key := unhex(t, smallOrder[0])
	s, err := edwards25519.NewScalar().SetUniformBytes(mlstest.New(11).Bytes(64))
	require.NoError(t, err)
	signature := slices.Concat(new(edwards25519.Point).ScalarBaseMult(s).Bytes(), s.Bytes())
	require.False(t, hasSmallOrder(signature[:32]))
	require.True(t, ed25519.Verify(key, []byte("message"), signature))
	require.False(t, newStrictKey(key).verify([]byte("message"), signature))
}

// TestSmallOrderR has the owner of a good key sign with the identity for R.
func TestSmallOrderR(t *testing.T) {
	t.Parallel()
	maker := mlstest.New(6)
	key := maker.InstallationKey()
	public := key.Public().(ed25519.PublicKey)
	message := []byte("message")

	r := edwards25519.NewIdentityPoint().Bytes()
	digest := sha512.Sum512(slices.Concat(r, public, message))
	challenge, err := edwards25519.NewScalar().SetUniformBytes(digest[:])
	require.NoError(t, err)
	expanded := sha512.Sum512(key.Seed())
	secret, err := edwards25519.NewScalar().SetBytesWithClamping(expanded[:32])
	require.NoError(t, err)
	s := edwards25519.NewScalar().Multiply(challenge, secret)
	signature := slices.Concat(r, s.Bytes())

	require.True(t, ed25519.Verify(public, message, signature))
	require.False(t, newStrictKey(public).verify(message, signature))
	require.True(t, newStrictKey(public).verify(message, ed25519.Sign(key, message)))
}

func TestStrictKeyRefusesWrongLengths(t *testing.T) {
	t.Parallel()
	key := mlstest.New(7).InstallationKey()
	public := key.Public().(ed25519.PublicKey)
	good := ed25519.Sign(key, []byte("message"))
	require.True(t, newStrictKey(public).verify([]byte("message"), good))
	require.False(t, newStrictKey(public).verify([]byte("massage"), good))
	for _, length := range []int{0, 31, 33} {
		require.False(t, newStrictKey(make([]byte, length)).verify([]byte("message"), good))
	}
	for _, length := range []int{0, 63} {
		require.False(t, newStrictKey(public).verify([]byte("message"), good[:length]))
	}
	require.False(t, newStrictKey(public).verify([]byte("message"), append(good, 0)))
	require.True(t, hasSmallOrder(unhex(t, "02"+hex.EncodeToString(make([]byte, 31)))), "no point at all")
}
