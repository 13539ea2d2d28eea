package wallet

import (
	"bytes"
	"encoding/hex"
	"strconv"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/caip"
)

func words(t testing.TB, text ...string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(text, ""))
	require.NoError(t, err)
	return append(b, wrapperSuffix...)
}

// word is a small number as 32 bytes of hex.
func word(digits string) string { return strings.Repeat("0", 64-len(digits)) + digits }

func TestUnwrap(t *testing.T) {
	factoryWord := word("1000000000000000000000000000000000000002")
	data := func(digits string) string { return digits + strings.Repeat("0", 64-len(digits)) }
	cases := map[string]struct {
		signature       []byte
		ok              bool
		calldata, inner string
	}{
		"as encoders write it":         {words(t, factoryWord, word("60"), word("a0"), word("2"), data("aabb"), word("1"), data("cc")), true, "aabb", "cc"},
		"both empty":                   {words(t, factoryWord, word("60"), word("80"), word("0"), word("0")), true, "", ""},
		"both at one place":            {words(t, factoryWord, word("60"), word("60"), word("1"), data("aa")), true, "aa", "aa"},
		"the other order":              {words(t, factoryWord, word("a0"), word("60"), word("1"), data("cc"), word("1"), data("aa")), true, "aa", "cc"},
		"without padding":              {words(t, factoryWord, word("60"), word("81"), word("1"), "aa", word("1"), "cc"), true, "aa", "cc"},
		"a full length to the end":     {words(t, factoryWord, word("60"), word("80"), word("0"), word("20"), data("cc")), true, "", data("cc")},
		"a length one past the end":    {words(t, factoryWord, word("60"), word("80"), word("0"), word("21"), data("cc")), false, "", ""},
		"an offset at the last word":   {words(t, factoryWord, word("60"), word("60"), word("0")), true, "", ""},
		"an offset past the last word": {words(t, factoryWord, word("60"), word("61"), word("0")), false, "", ""},
		"an offset at the end":         {words(t, factoryWord, word("60"), word("80"), word("0")), false, "", ""},
		"an offset past the end":       {words(t, factoryWord, word("60"), word("ff"), word("0")), false, "", ""},
		"an offset of 2^64":            {words(t, factoryWord, word("60"), word("10000000000000060"), word("0")), false, "", ""},
		"an offset of 2^64-1":          {words(t, factoryWord, word("60"), word("ffffffffffffffff"), word("0")), false, "", ""},
		"an offset of 2^256-1":         {words(t, factoryWord, strings.Repeat("f", 64), word("60"), word("0")), false, "", ""},
		"a length of 2^64-1":           {words(t, factoryWord, word("60"), word("60"), word("ffffffffffffffff")), false, "", ""},
		"a length of 2^255":            {words(t, factoryWord, word("60"), word("60"), "80"+strings.Repeat("0", 62)), false, "", ""},
		"dirty bytes before the factory": {
			words(t, "01"+factoryWord[2:], word("60"), word("60"), word("0")), false, "", ""},
		"a head one byte short": {words(t, factoryWord, word("60"), word("60")[:62]), false, "", ""},
		"a head and no more":    {words(t, factoryWord, word("60"), word("60")), false, "", ""},
		"the suffix alone":      {words(t), false, "", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			deploy, inner, ok := unwrap(tc.signature)
			require.Equal(t, tc.ok, ok)
			if !ok {
				require.Nil(t, deploy)
				require.Nil(t, inner)
				return
			}
			require.Equal(t, factory, deploy.factory)
			require.Equal(t, tc.calldata, hex.EncodeToString(deploy.calldata))
			require.Equal(t, tc.inner, hex.EncodeToString(inner))
		})
	}
}

func TestSignatureWithoutTheSuffixIsNotWrapped(t *testing.T) {
	wrapped := wrap(factory, []byte{1}, []byte{2})
	for name, signature := range map[string][]byte{
		"last byte differs":   with(wrapped, len(wrapped)-1, 0x93),
		"first byte of it":    with(wrapped, len(wrapped)-32, 0x65),
		"a byte after it":     append(bytes.Clone(wrapped), 0),
		"31 bytes of it":      wrapperSuffix[1:],
		"nothing":             nil,
		"suffix at the front": append(bytes.Clone(wrapperSuffix), make([]byte, 65)...),
	} {
		deploy, inner, ok := unwrap(signature)
		require.True(t, ok, name)
		require.Nil(t, deploy, name)
		require.Equal(t, signature, inner, name)
	}
}

// wrapperTypes is the encoding as go-ethereum's own decoder knows it.
func wrapperTypes(t testing.TB) abi.Arguments {
	t.Helper()
	var arguments abi.Arguments
	for _, name := range []string{"address", "bytes", "bytes"} {
		kind, err := abi.NewType(name, "", nil)
		require.NoError(t, err)
		arguments = append(arguments, abi.Argument{Type: kind})
	}
	return arguments
}

func TestUnwrapReadsWhatAnEncoderWrites(t *testing.T) {
	types := wrapperTypes(t)
	for _, size := range []int{0, 1, 31, 32, 33, 65, 1000} {
		calldata, inner := bytes.Repeat([]byte{0xaa}, size), bytes.Repeat([]byte{0xbb}, 2*size)
		encoded, err := types.Pack(factory, calldata, inner)
		require.NoError(t, err)
		deploy, got, ok := unwrap(append(encoded, wrapperSuffix...))
		require.True(t, ok)
		require.Equal(t, factory, deploy.factory)
		require.True(t, bytes.Equal(calldata, deploy.calldata))
		require.True(t, bytes.Equal(inner, got))
	}
}

// The check calldata is what an encoder writes, padding included: contracts may
// insist on it.
func TestValidatorInput(t *testing.T) {
	kinds := make([]abi.Argument, 2)
	for i, name := range []string{"bytes32", "bytes"} {
		kind, err := abi.NewType(name, "", nil)
		require.NoError(t, err)
		kinds[i].Type = kind
	}
	hash := [32]byte{1, 2, 3}
	for _, size := range []int{0, 1, 32, 65} {
		signature := bytes.Repeat([]byte{0xbb}, size)
		arguments, err := abi.Arguments(kinds).Pack(hash, signature)
		require.NoError(t, err)
		check := append([]byte{0x16, 0x26, 0xba, 0x7e}, arguments...)
		deploy := &deployment{factory: factory, calldata: []byte("deploy")}
		input := hex.EncodeToString(validatorInput(always, deploy, hash, signature))
		require.Equal(t, validatorCode+
			word(strings.ToLower(always.Hex()[2:]))+word(strings.ToLower(factory.Hex()[2:]))+word("1")+
			word("6")+word(strconv.FormatInt(int64(len(check)), 16))+
			hex.EncodeToString([]byte("deploy"))+hex.EncodeToString(check), input)
	}
}

// FuzzUnwrap holds the reader against go-ethereum's decoder: what that reads,
// this reads alike. The reverse is not asked: the other one wants padding.
func FuzzUnwrap(f *testing.F) {
	types := wrapperTypes(f)
	encoded, err := types.Pack(factory, []byte("deploy"), bytes.Repeat([]byte{7}, 65))
	require.NoError(f, err)
	f.Add(encoded)
	f.Add([]byte{})
	f.Add(make([]byte, 96))
	f.Add(make([]byte, 128))
	f.Fuzz(func(t *testing.T, body []byte) {
		deploy, inner, ok := unwrap(append(bytes.Clone(body), wrapperSuffix...))
		if ok {
			require.LessOrEqual(t, len(deploy.calldata), len(body))
			require.LessOrEqual(t, len(inner), len(body))
			input := validatorInput(common.Address{}, deploy, [32]byte{}, inner)
			require.Less(t, len(input), 1000+2*len(body))
		}
		values, err := types.Unpack(body)
		clean := len(body) >= 32 && bytes.Equal(body[:12], make([]byte, 12))
		if err != nil || !clean {
			return
		}
		require.True(t, ok)
		require.Equal(t, values[0], deploy.factory)
		require.True(t, bytes.Equal(values[1].([]byte), deploy.calldata))
		require.True(t, bytes.Equal(values[2].([]byte), inner))

		plain, same, ok := unwrap(body)
		require.True(t, !ok || plain != nil || bytes.Equal(body, same))
	})
}

// FuzzVerify feeds whole requests to a verifier whose chain is configured but
// away: there is a definite "invalid" without a call, or a classified failure,
// and never "valid".
func FuzzVerify(f *testing.F) {
	v, err := New(Config{
		Chains: Endpoints{"eip155:1": "http://127.0.0.1:1"}, Timeout: maxTimeout, MaxCalls: 1, CacheEntries: 1,
	})
	require.NoError(f, err)
	f.Add(accountID(always), make([]byte, 65))
	f.Add("eip155:1:"+always.Hex(), make([]byte, 31))
	f.Add("eip155:1:"+always.Hex(), wrap(factory, nil, nil))
	f.Add("eip155:1:"+always.Hex()[2:], []byte(nil))
	f.Add("eip155:1:0x", make([]byte, 32))
	f.Add("eip155::", []byte(nil))
	f.Fuzz(func(t *testing.T, account string, signature []byte) {
		valid, err := v.VerifyAt(t.Context(), account, 1, [32]byte{}, signature)
		require.False(t, valid)
		parsed, parseErr := caip.ParseAccount(account)
		if parseErr != nil {
			require.Equal(t, parseErr, err)
			return
		}
		if err != nil {
			requireUnavailable(t, err, "")
			return
		}
		require.Equal(t, "eip155:1", parsed.ChainID)
	})
}
