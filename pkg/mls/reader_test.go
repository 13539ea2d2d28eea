package mls

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
)

func TestLengthPrefixes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		encoded string
		value   int
		ok      bool
	}{
		{"00", 0, true},
		{"25", 37, true},
		{"3f", 63, true},
		{"4040", 64, true},
		{"7bbd", 15293, true},
		{"7fff", 16383, true},
		{"80004000", 16384, true},
		{"9d7f3e7d", 494878333, true},
		{"bfffffff", 1<<30 - 1, true},
		{"", 0, false},
		{"40", 0, false},
		{"800040", 0, false},
		{"4025", 0, false},
		{"403f", 0, false},
		{"80000001", 0, false},
		{"80003fff", 0, false},
		{"c2197c5eff14e88c", 0, false},
		{"c000000000000001", 0, false},
	} {
		data, err := hex.DecodeString(c.encoded)
		require.NoError(t, err)
		r := newReader("vector", data)
		value := r.length("test")
		require.Equal(t, c.ok, r.err == nil, c.encoded)
		if c.ok {
			require.Equal(t, c.value, value, c.encoded)
			require.Equal(t, len(data), r.at, c.encoded)
		}
	}
}

// TestLengthsMatchTheTestKit compares the two encoders and the decoder around
// each change of width.
func TestLengthsMatchTheTestKit(t *testing.T) {
	t.Parallel()
	for _, length := range []int{0, 1, 63, 64, 65, 16383, 16384, 16385, 1 << 20} {
		content := make([]byte, length)
		encoded := mlstest.Vector(content)
		require.Equal(t, encoded, append(appendLength(nil, length), content...))
		r := newReader("vector", encoded)
		require.Equal(t, content, r.vector("test"))
		require.Nil(t, r.err)
		require.Equal(t, len(encoded), r.at)
	}
}

// TestNestedVectorsEndWhereTheySay has an item reach past its list into bytes
// that belong to the next field.
func TestNestedVectorsEndWhereTheySay(t *testing.T) {
	t.Parallel()
	r := newReader("list", []byte{2, 2, 0xaa, 0xbb})
	outer := r.open("list")
	require.True(t, r.more())
	r.vector("item")
	require.ErrorContains(t, r.err, "byte 1: the item takes 2 bytes, but only 1 are left")
	require.False(t, r.more())
	require.Equal(t, 4, outer)
}
