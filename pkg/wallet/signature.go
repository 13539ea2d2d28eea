package wallet

import (
	"bytes"
	"encoding/binary"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// minSignatureBytes is the shortest signature that is checked at all. The
// validators of other backends can accept nothing shorter, whoever signs.
const minSignatureBytes = 32

// wrapperSuffix marks a signature of an account that may not be deployed yet
// (ERC-6492).
var wrapperSuffix = bytes.Repeat([]byte{0x64, 0x92}, wordBytes/2)

// deployment is the call that creates a counterfactual account.
type deployment struct {
	factory  common.Address
	calldata []byte
}

// unwrap splits an ERC-6492 signature, abi.encode(address factory, bytes
// calldata, bytes signature) followed by the suffix, into the deployment and
// the signature inside. A signature without the suffix comes back as it is,
// with no deployment. ok is false when the suffix is there and what precedes it
// is not that encoding. The results alias the input.
func unwrap(signature []byte) (deploy *deployment, inner []byte, ok bool) {
	body, wrapped := bytes.CutSuffix(signature, wrapperSuffix)
	if !wrapped {
		return nil, signature, true
	}
	if len(body) < 3*wordBytes {
		return nil, nil, false
	}
	for _, b := range body[:wordBytes-common.AddressLength] {
		if b != 0 {
			return nil, nil, false
		}
	}
	calldata, ok := bytesArgument(body, 1)
	if !ok {
		return nil, nil, false
	}
	inner, ok = bytesArgument(body, 2)
	if !ok {
		return nil, nil, false
	}
	factory := common.BytesToAddress(body[wordBytes-common.AddressLength : wordBytes])
	return &deployment{factory: factory, calldata: calldata}, inner, true
}

// bytesArgument reads the dynamic bytes whose offset stands in the given word
// of an ABI encoding. The offset and the length have to stay inside it; like
// the decoders of contracts it asks for no order, alignment or padding.
func bytesArgument(body []byte, index int) ([]byte, bool) {
	offset, ok := smallWord(body, uint64(index*wordBytes))
	if !ok {
		return nil, false
	}
	length, ok := smallWord(body, offset)
	if !ok {
		return nil, false
	}
	content := body[offset+wordBytes:]
	if length > uint64(len(content)) {
		return nil, false
	}
	return content[:length], true
}

// smallWord reads the word at an offset. It fails when the word is not inside
// the body, or needs more than 64 bits and so is no offset or length.
func smallWord(body []byte, at uint64) (uint64, bool) {
	size := uint64(len(body))
	if at > size || size-at < wordBytes {
		return 0, false
	}
	word := body[at : at+wordBytes]
	for _, b := range word[:wordBytes-8] {
		if b != 0 {
			return 0, false
		}
	}
	return binary.BigEndian.Uint64(word[wordBytes-8:]), true
}

// signedByKey says whether the plain key of signer made the signature: 65 bytes
// r, s, v with v 27 or 28. Like the EVM's own recovery it accepts a high s, and
// unlike a contract it accepts no signature for the zero address.
func signedByKey(signer common.Address, hash [32]byte, signature []byte) bool {
	const vAt = 64
	if len(signature) != vAt+1 || signature[vAt] != 27 && signature[vAt] != 28 {
		return false
	}
	v := signature[vAt] - 27
	r, s := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:vAt])
	if !crypto.ValidateSignatureValues(v, r, s, false) {
		return false
	}
	recoverable := append(append(make([]byte, 0, vAt+1), signature[:vAt]...), v)
	key, err := crypto.SigToPub(hash[:], recoverable)
	return err == nil && crypto.PubkeyToAddress(*key) == signer
}
