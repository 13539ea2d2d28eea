package wallet

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/ethereum/go-ethereum/common"
)

// validatorCode is the assembled validator.evm.asm: init code that asks a
// contract wallet for its verdict inside one eth_call without `to`.
const validatorCode = "6071380360716000396000513b603857604051601b5760026068565b6000600060605160a060006020515af115606557" +
	"6000513b156065575b6020600060805160605160a0016000515afa1560655760203d10606557600051631626ba7e60e01b14" +
	"6068565b60005b60005360016000f3"

// What the validator answers, as its single byte. It gives no other answer, and the
// last only for a signature that is not wrapped.
const (
	answerInvalid = 0x00
	answerValid   = 0x01
	answerNoCode  = 0x02
)

const (
	wordBytes = 32
	// magicSelector is isValidSignature(bytes32,bytes), and also what a contract
	// answers when it accepts (ERC-1271).
	magicSelector = 0x1626ba7e
)

// validatorInput is the validator's code followed by its arguments, as the
// listing describes them. deploy is nil for a signature that is not wrapped.
func validatorInput(signer common.Address, deploy *deployment, hash [32]byte, signature []byte) []byte {
	var factory common.Address
	var factoryCall []byte
	wrapped := uint64(0)
	if deploy != nil {
		factory, factoryCall, wrapped = deploy.factory, deploy.calldata, 1
	}
	padded := (len(signature) + wordBytes - 1) / wordBytes * wordBytes
	checkBytes := 4 + 3*wordBytes + padded

	input := make([]byte, 0, len(validatorCode)/2+5*wordBytes+len(factoryCall)+checkBytes)
	input, err := hex.AppendDecode(input, []byte(validatorCode))
	if err != nil {
		panic("wallet: the validator code is not hex: " + err.Error()) // a constant
	}
	input = append(input, common.LeftPadBytes(signer[:], wordBytes)...)
	input = append(input, common.LeftPadBytes(factory[:], wordBytes)...)
	input = appendWord(input, wrapped)
	input = appendWord(input, uint64(len(factoryCall)))
	input = appendWord(input, uint64(checkBytes))
	input = append(input, factoryCall...)

	input = binary.BigEndian.AppendUint32(input, magicSelector)
	input = append(input, hash[:]...)
	input = appendWord(input, 2*wordBytes) // where the signature argument begins
	input = appendWord(input, uint64(len(signature)))
	input = append(input, signature...)
	return append(input, make([]byte, padded-len(signature))...)
}

// appendWord appends value as a 32-byte big-endian word.
func appendWord(b []byte, value uint64) []byte {
	b = append(b, make([]byte, wordBytes-8)...)
	return binary.BigEndian.AppendUint64(b, value)
}
