// Package caip reads CAIP-10 account identifiers such as
// "eip155:1:0xab16a96d359ec26a11e2c2b3d8f8b8942d5bfcdb": which chain, and which
// account on it.
package caip

import (
	"errors"
	"strconv"
	"strings"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// The bounds of CAIP-2 and CAIP-10, in bytes.
const (
	minNamespace = 3
	maxNamespace = 8
	maxReference = 32
	maxAddress   = 128
)

// eip155 is the namespace of Ethereum and its relatives.
const eip155 = "eip155"

// addressDigits is the number of hex digits in a 20-byte address.
const addressDigits = 40

// Account names an account on one chain. Both parts are as received: nothing is
// normalized, so "eip155:01" and "eip155:1" are different chains.
type Account struct {
	// ChainID is the CAIP-2 chain identifier, namespace and reference: "eip155:1".
	ChainID string
	// Address is what follows; its form depends on the namespace.
	Address string
}

// ParseAccount reads a CAIP-10 account identifier. A failure is of kind Invalid
// without a reason, and its text does not repeat the input.
func ParseAccount(id string) (Account, error) {
	namespace, rest, ok := strings.Cut(id, ":")
	if !ok {
		return Account{}, invalid("has one part, expected chain namespace, chain reference and address between colons")
	}
	reference, address, ok := strings.Cut(rest, ":")
	if !ok {
		return Account{}, invalid("has two parts, expected chain namespace, chain reference and address between colons")
	}
	switch {
	case strings.Contains(address, ":"):
		return Account{}, invalid("has more than three parts, expected chain namespace, chain reference and address between colons")
	case len(namespace) < minNamespace, len(namespace) > maxNamespace, !consistsOf(namespace, isNamespace):
		return Account{}, invalid("has a bad chain namespace, expected 3 to 8 characters of a-z, 0-9 and -")
	case len(reference) < 1, len(reference) > maxReference, !consistsOf(reference, isReference):
		return Account{}, invalid("has a bad chain reference, expected 1 to 32 characters of a-z, A-Z, 0-9, - and _")
	case len(address) < 1, len(address) > maxAddress, !consistsOf(address, isAddress):
		return Account{}, invalid("has a bad address, expected 1 to 128 characters of a-z, A-Z, 0-9, -, . and %")
	}
	return Account{ChainID: id[:len(namespace)+1+len(reference)], Address: address}, nil
}

// EIP155 is the chain's number, if the chain is of namespace eip155 and its
// reference is a decimal number below 2^64. Leading zeros are read over.
func (a Account) EIP155() (number uint64, ok bool) {
	namespace, reference, ok := strings.Cut(a.ChainID, ":")
	if !ok || namespace != eip155 {
		return 0, false
	}
	number, err := strconv.ParseUint(reference, 10, 64)
	return number, err == nil
}

// ParseEIP155 reads the account id of a wallet on an eip155 chain in its only
// spelling: the chain's number is decimal, below 2^64 and without sign or leading
// zeros, and the address is 0x and 40 hex digits (IDENT-060). The address comes back
// in lower case. A failure is as in ParseAccount.
func ParseEIP155(id string) (chain uint64, address string, err error) {
	account, err := ParseAccount(id)
	if err != nil {
		return 0, "", err
	}
	if err := CheckEIP155(account.ChainID); err != nil {
		return 0, "", invalid("has a bad chain: " + err.Error())
	}
	address, ok := account.EthereumAddress()
	if !ok || len(address) != len("0x")+addressDigits {
		return 0, "", invalid("has a bad address, expected 0x and 40 hex digits")
	}
	chain, _ = account.EIP155()
	return chain, address, nil
}

// CheckEIP155 accepts the id of an eip155 chain with a canonical number, as in a
// configuration. Only these chains have a virtual machine that runs the validator
// of wallet signatures, and ids are compared as text, so that another spelling of
// a number would never be found.
func CheckEIP155(chain string) error {
	if number, ok := (Account{ChainID: chain}).EIP155(); ok && chain == eip155+":"+strconv.FormatUint(number, 10) {
		return nil
	}
	return errors.New("the chain is not eip155: and a decimal number without leading zeros")
}

// EthereumAddress is the address in lower case, if it is 40 hex digits with or
// without a leading "0x". A missing "0x" is not added.
func (a Account) EthereumAddress() (address string, ok bool) {
	digits := strings.TrimPrefix(a.Address, "0x")
	if len(digits) != addressDigits || !consistsOf(digits, isHex) {
		return "", false
	}
	return strings.ToLower(a.Address), true
}

func invalid(what string) error {
	return fault.Invalidf(fault.NoReason, "account id %s", what)
}

func consistsOf(s string, class func(byte) bool) bool {
	for i := range len(s) {
		if !class(s[i]) {
			return false
		}
	}
	return true
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isNamespace(c byte) bool { return isLower(c) || isDigit(c) || c == '-' }
func isReference(c byte) bool { return isNamespace(c) || isUpper(c) || c == '_' }
func isAddress(c byte) bool {
	return isLower(c) || isUpper(c) || isDigit(c) || c == '-' || c == '.' || c == '%'
}
func isHex(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }
