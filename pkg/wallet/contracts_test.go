package wallet

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// walletListing is an ERC-1271 wallet with its owner in storage slot 0. It asks
// the recovery precompile who signed. setOwner(address), which anybody may
// call, changes the owner.
const walletListing = `
    PUSH1 0x00
    CALLDATALOAD
    PUSH1 0xe0
    SHR             ; selector
    DUP1
    PUSH4 0x13af4035
    EQ
    PUSH1 @set
    JUMPI
    PUSH4 0x1626ba7e
    EQ
    PUSH1 @check
    JUMPI
    PUSH1 0x00
    PUSH1 0x00
    REVERT
set:
    PUSH1 0x04
    CALLDATALOAD
    PUSH1 0x00
    SSTORE
    STOP
check:              ; memory: hash v r s, then the recovered address
    PUSH1 0x04
    CALLDATALOAD
    PUSH1 0x00
    MSTORE
    PUSH1 0xa4
    CALLDATALOAD
    PUSH1 0x00
    BYTE
    PUSH1 0x20
    MSTORE
    PUSH1 0x64
    CALLDATALOAD
    PUSH1 0x40
    MSTORE
    PUSH1 0x84
    CALLDATALOAD
    PUSH1 0x60
    MSTORE
    PUSH1 0x20
    PUSH1 0x80
    PUSH1 0x80
    PUSH1 0x00
    PUSH1 0x01
    GAS
    STATICCALL
    PUSH1 0x80
    MLOAD
    PUSH1 0x00
    SLOAD
    EQ
    PUSH1 @yes
    JUMPI
    PUSH4 0xffffffff
    PUSH1 @answer
    JUMP
yes:
    PUSH4 0x1626ba7e
answer:
    PUSH1 0xe0
    SHL
    PUSH1 0x00
    MSTORE
    PUSH1 0x20
    PUSH1 0x00
    RETURN
`

// factoryListing deploys by CREATE2: the first word of the calldata is the salt,
// the rest is the init code.
const factoryListing = `
    PUSH1 0x20
    CALLDATASIZE
    SUB
    DUP1
    PUSH1 0x20
    PUSH1 0x00
    CALLDATACOPY    ; size
    PUSH1 0x00
    CALLDATALOAD    ; size salt
    SWAP1           ; salt size
    PUSH1 0x00
    PUSH1 0x00
    CREATE2
    STOP
`

const revertListing = `
    PUSH1 0x00
    PUSH1 0x00
    REVERT
`

const endlessListing = `
again:
    PUSH1 @again
    JUMP
`

// returnListing is a contract that returns the given bytes of its first two
// words, whoever asks and whatever for.
func returnListing(first, second string, size byte) string {
	return fmt.Sprintf(`
    PUSH32 0x%s
    PUSH1 0x00
    MSTORE
    PUSH32 0x%s
    PUSH1 0x20
    MSTORE
    PUSH1 0x%02x
    PUSH1 0x00
    RETURN
`, first, second, size)
}

// walletInitCode deploys a wallet of the owner.
func walletInitCode(t *testing.T, owner common.Address) []byte {
	t.Helper()
	runtime := assemble(t, walletListing)
	init := assemble(t, fmt.Sprintf(`
    PUSH20 0x%x
    PUSH1 0x00
    SSTORE
    PUSH1 0x%02[2]x
    PUSH1 @end
    PUSH1 0x00
    CODECOPY
    PUSH1 0x%02[2]x
    PUSH1 0x00
    RETURN
`, owner.Bytes(), len(runtime)))
	return append(init, runtime...)
}

// counterfactual is the address of a wallet before its deployment, and the call
// to the factory that deploys it.
func counterfactual(t *testing.T, factory, owner common.Address, salt byte) (account common.Address, calldata []byte) {
	t.Helper()
	init := walletInitCode(t, owner)
	word := [32]byte{31: salt}
	return crypto.CreateAddress2(factory, word, crypto.Keccak256(init)), append(word[:], init...)
}

// wrap makes an ERC-6492 signature.
func wrap(factory common.Address, calldata, inner []byte) []byte {
	word := func(n int) []byte { return binary.BigEndian.AppendUint64(make([]byte, 24), uint64(n)) }
	padded := func(b []byte) []byte { return append(append(word(len(b)), b...), make([]byte, (32-len(b)%32)%32)...) }

	first, second := padded(calldata), padded(inner)
	wrapped := common.LeftPadBytes(factory[:], 32)
	wrapped = append(wrapped, word(0x60)...)
	wrapped = append(wrapped, word(0x60+len(first))...)
	wrapped = append(wrapped, first...)
	wrapped = append(wrapped, second...)
	return append(wrapped, wrapperSuffix...)
}
