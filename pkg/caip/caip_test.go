package caip_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/caip"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

func TestParseAccount(t *testing.T) {
	accepted := map[string]caip.Account{
		"eip155:1:0xab16a96D359eC26a11e2C2b3d8f8B8942d5Bfcdb":                                                        {ChainID: "eip155:1", Address: "0xab16a96D359eC26a11e2C2b3d8f8B8942d5Bfcdb"},
		"bip122:000000000019d6689c085ae165831e93:128Lkh3S7CkDTBZ8W7BbpsN3YYizJMp8p6":                                 {ChainID: "bip122:000000000019d6689c085ae165831e93", Address: "128Lkh3S7CkDTBZ8W7BbpsN3YYizJMp8p6"},
		"cosmos:cosmoshub-3:cosmos1t2uflqwqe0fsj0shcfkrvpukewcw40yjj6hdc0":                                           {ChainID: "cosmos:cosmoshub-3", Address: "cosmos1t2uflqwqe0fsj0shcfkrvpukewcw40yjj6hdc0"},
		"starknet:SN_GOERLI:0x02dd1b492765c064eac4039e3841aa5f382773b598097a40073bd8b48170ab57":                      {ChainID: "starknet:SN_GOERLI", Address: "0x02dd1b492765c064eac4039e3841aa5f382773b598097a40073bd8b48170ab57"},
		"hedera:mainnet:0.0.1234567890-zbhlt":                                                                        {ChainID: "hedera:mainnet", Address: "0.0.1234567890-zbhlt"},
		"chainstd:8c3444cf8970a9e41a706fab93e7a6c4:6d9b0b4b9994e8a6afbd3dc3ed983cd51c755afb27cd1dc7825ef59c134a39f7": {ChainID: "chainstd:8c3444cf8970a9e41a706fab93e7a6c4", Address: "6d9b0b4b9994e8a6afbd3dc3ed983cd51c755afb27cd1dc7825ef59c134a39f7"},
		"abc:1:%": {ChainID: "abc:1", Address: "%"},
		"abcdefgh:" + strings.Repeat("a", 32) + ":a-.": {ChainID: "abcdefgh:" + strings.Repeat("a", 32), Address: "a-."},
		"eip155:01:" + strings.Repeat("f", 128):        {ChainID: "eip155:01", Address: strings.Repeat("f", 128)},
	}
	for id, want := range accepted {
		got, err := caip.ParseAccount(id)
		require.NoError(t, err, id)
		require.Equal(t, want, got)
	}

	rejected := map[string]string{
		"slash in the namespace":  "eip/155:1:0xab16a96D359eC26a11e2C2b3d8f8B8942d5Bfcd",
		"nothing":                 "",
		"one part":                "eip155",
		"two parts":               "eip155:1",
		"four parts":              "eip155:1:0xab:1",
		"empty parts":             "::",
		"upper-case namespace":    "EIP155:1:0xab",
		"short namespace":         "ei:1:0xab",
		"long namespace":          "abcdefghi:1:0xab",
		"underscore in namespace": "eip_155:1:0xab",
		"empty reference":         "eip155::0xab",
		"long reference":          "eip155:" + strings.Repeat("1", 33) + ":0xab",
		"dot in reference":        "eip155:1.0:0xab",
		"empty address":           "eip155:1:",
		"long address":            "eip155:1:" + strings.Repeat("a", 129),
		"underscore in address":   "eip155:1:0x_ab",
		"newline at the end":      "eip155:1:0xab\n",
		"NUL":                     "eip155:1:0xab\x00",
		"not ASCII":               "eip155:1:0xäb",
	}
	for name, id := range rejected {
		t.Run(name, func(t *testing.T) {
			_, err := caip.ParseAccount(id)
			require.Error(t, err)
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			require.Equal(t, fault.NoReason, fault.Of(err).Reason)
		})
	}
}

func TestErrorTextIsPlain(t *testing.T) {
	_, err := caip.ParseAccount("eip155:1:_")
	require.EqualError(t, err, "account id has a bad address, expected 1 to 128 characters of a-z, A-Z, 0-9, -, . and %")
}

func TestEIP155(t *testing.T) {
	cases := map[string]struct {
		chain  string
		number uint64
		ok     bool
	}{
		"mainnet":           {"eip155:1", 1, true},
		"leading zero":      {"eip155:01", 1, true},
		"largest":           {"eip155:18446744073709551615", 18446744073709551615, true},
		"too large":         {"eip155:18446744073709551616", 0, false},
		"not a number":      {"eip155:main", 0, false},
		"negative":          {"eip155:-1", 0, false},
		"underscores":       {"eip155:1_0", 0, false},
		"another namespace": {"bip122:1", 0, false},
		"none":              {"", 0, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			number, ok := caip.Account{ChainID: c.chain}.EIP155()
			require.Equal(t, c.ok, ok)
			if ok {
				require.Equal(t, c.number, number)
			}
		})
	}
}

func TestEthereumAddress(t *testing.T) {
	digits := "ab16a96D359eC26a11e2C2b3d8f8B8942d5Bfcdb"
	cases := map[string]struct {
		address, want string
		ok            bool
	}{
		"checksummed":     {"0x" + digits, "0x" + strings.ToLower(digits), true},
		"without 0x":      {digits, strings.ToLower(digits), true},
		"upper-case 0X":   {"0X" + digits, "", false},
		"one digit short": {"0x" + digits[1:], "", false},
		"one digit more":  {"0xa" + digits, "", false},
		"not hex":         {"0xg" + digits[1:], "", false},
		"two prefixes":    {"0x0x" + digits[2:], "", false},
		"empty":           {"", "", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok := caip.Account{Address: c.address}.EthereumAddress()
			require.Equal(t, c.ok, ok)
			require.Equal(t, c.want, got)
		})
	}
}

func TestCheckEIP155(t *testing.T) {
	for _, chain := range []string{"eip155:0", "eip155:1", "eip155:18446744073709551615"} {
		require.NoError(t, caip.CheckEIP155(chain), chain)
	}
	for _, chain := range []string{"", "1", "eip155", "eip155:", "eip155:01", "eip155:+1", "eip155:1 ", " eip155:1", "eip155:1:2", "eip155:0x1",
		"eip155:18446744073709551616", "cosmos:1", "EIP155:1"} {
		require.ErrorContains(t, caip.CheckEIP155(chain), "decimal number without leading zeros", chain)
	}
}

// FuzzParseAccount compares the parser with the expressions of the standard.
func FuzzParseAccount(f *testing.F) {
	chain := regexp.MustCompile(`^[-a-z0-9]{3,8}:[-_a-zA-Z0-9]{1,32}$`)
	address := regexp.MustCompile(`^[-.%a-zA-Z0-9]{1,128}$`)
	for _, seed := range []string{"eip155:1:0xab16a96D359eC26a11e2C2b3d8f8B8942d5Bfcdb", "eip155:1", "a:b:c:d", "::", "eip155:1:0x_"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		parts := strings.Split(id, ":")
		want := len(parts) == 3 && chain.MatchString(parts[0]+":"+parts[1]) && address.MatchString(parts[2])
		account, err := caip.ParseAccount(id)
		require.Equal(t, want, err == nil)
		if want {
			require.Equal(t, id, account.ChainID+":"+account.Address)
		}
	})
}

// Proves IDENT-060.
func TestParseEIP155TakesOneSpelling(t *testing.T) {
	const digits = "ab16a96d359ec26a11e2c2b3d8f8b8942d5bfcdb"
	for id, want := range map[string]uint64{
		"eip155:1:0x" + digits:                         1,
		"eip155:0:0x" + strings.ToUpper(digits):        0,
		"eip155:18446744073709551615:0x" + digits[:40]: 1<<64 - 1,
	} {
		chain, address, err := caip.ParseEIP155(id)
		require.NoError(t, err, id)
		require.Equal(t, want, chain)
		require.Equal(t, "0x"+digits, address)
	}
	for _, id := range []string{
		"", "eip155:1", "eip155:1:" + digits, "eip155:1:0X" + digits, "eip155:1:0x" + digits[:39], "eip155:1:0x" + digits + "0",
		"eip155:1:0x" + digits[:39] + "g", "eip155:01:0x" + digits, "eip155:+1:0x" + digits, "eip155:-1:0x" + digits,
		"eip155:18446744073709551616:0x" + digits, "eip155:0x1:0x" + digits, "EIP155:1:0x" + digits, "eip156:1:0x" + digits,
		"cosmos:cosmoshub-3:0x" + digits, "eip155:1:0x" + digits + ":", "eip155: 1:0x" + digits,
	} {
		_, _, err := caip.ParseEIP155(id)
		require.Error(t, err, id)
		require.Equal(t, fault.Invalid, fault.KindOf(err), id)
	}
}
