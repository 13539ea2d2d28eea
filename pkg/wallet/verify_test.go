package wallet

import (
	"bytes"
	"crypto/ecdsa"
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
)

const (
	magicWord   = "1626ba7e00000000000000000000000000000000000000000000000000000000"
	dirtyWord   = "1626ba7e00000000000000000000000000000000000000000000000000000001"
	rightWord   = "000000000000000000000000000000000000000000000000000000001626ba7e"
	oneWord     = "0000000000000000000000000000000000000000000000000000000000000001"
	garbageWord = "deadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeef"
)

// contract addresses of the first block.
var (
	deployedWallet = common.HexToAddress("0x1000000000000000000000000000000000000001")
	factory        = common.HexToAddress("0x1000000000000000000000000000000000000002")
	always         = common.HexToAddress("0x1000000000000000000000000000000000000003")
	alwaysLonger   = common.HexToAddress("0x1000000000000000000000000000000000000004")
	otherWord      = common.HexToAddress("0x1000000000000000000000000000000000000005")
	dirty          = common.HexToAddress("0x1000000000000000000000000000000000000006")
	rightAligned   = common.HexToAddress("0x1000000000000000000000000000000000000007")
	garbage        = common.HexToAddress("0x1000000000000000000000000000000000000008")
	nothing        = common.HexToAddress("0x1000000000000000000000000000000000000009")
	short          = common.HexToAddress("0x100000000000000000000000000000000000000a")
	reverting      = common.HexToAddress("0x100000000000000000000000000000000000000b")
	endless        = common.HexToAddress("0x100000000000000000000000000000000000000c")
	missing        = common.HexToAddress("0x10000000000000000000000000000000000000ff")
)

// contracts are the accounts of the first block; the wallet belongs to owner.
func contracts(t *testing.T, owner common.Address) types.GenesisAlloc {
	t.Helper()
	account := func(listing string) types.Account { return types.Account{Code: assemble(t, listing)} }
	wallet := account(walletListing)
	wallet.Storage = map[common.Hash]common.Hash{{}: common.BytesToHash(owner[:])}
	return types.GenesisAlloc{
		deployedWallet: wallet,
		factory:        account(factoryListing),
		always:         account(returnListing(magicWord, garbageWord, 32)),
		alwaysLonger:   account(returnListing(magicWord, garbageWord, 64)),
		otherWord:      account(returnListing(oneWord, oneWord, 32)),
		dirty:          account(returnListing(dirtyWord, garbageWord, 32)),
		rightAligned:   account(returnListing(rightWord, garbageWord, 32)),
		garbage:        account(returnListing(garbageWord, garbageWord, 64)),
		nothing:        account("STOP"),
		short:          account(returnListing(magicWord, garbageWord, 31)),
		reverting:      account(revertListing),
		endless:        account(endlessListing),
	}
}

// mirrored turns a signature into its twin with the other s and v.
func mirrored(signature []byte) []byte {
	s := new(big.Int).SetBytes(signature[32:64])
	s.Sub(crypto.S256().Params().N, s)
	twin := bytes.Clone(signature)
	s.FillBytes(twin[32:64])
	twin[64] = 27 + 28 - signature[64]
	return twin
}

func with(signature []byte, at int, value byte) []byte {
	changed := bytes.Clone(signature)
	changed[at] = value
	return changed
}

// Every case that the universal validator of ERC-6492, which other backends use,
// tells apart, and the forms around it. Where that one reverts, which its users
// cannot tell from a broken node, the verdict here is a definite "invalid".
func TestVerdicts(t *testing.T) {
	owner, stranger := newKey(t), newKey(t)
	ownerAddress := crypto.PubkeyToAddress(owner.PublicKey)
	c := startChain(t, contracts(t, ownerAddress))
	v := c.verifier(t)

	hash := crypto.Keccak256Hash([]byte("signed"))
	other := crypto.Keccak256Hash([]byte("not signed"))
	good, bad := sign(t, owner, hash), sign(t, stranger, hash)
	future, deploys := counterfactual(t, factory, ownerAddress, 1)
	_, deploysElsewhere := counterfactual(t, factory, ownerAddress, 2)
	eoa := ownerAddress

	cases := []struct {
		name      string
		signer    common.Address
		hash      [32]byte
		signature []byte
		valid     bool
		local     bool // decided without asking the chain
	}{
		{"plain key, v 27 or 28", eoa, hash, good, true, false},
		{"plain key, high s with matching v", eoa, hash, mirrored(good), true, false},
		{"plain key, high s with the old v", eoa, hash, with(mirrored(good), 64, good[64]), false, false},
		{"plain key, wrong hash", eoa, other, good, false, false},
		{"plain key, wrong signer", eoa, hash, bad, false, false},
		{"plain key, v 0 or 1 (122)", eoa, hash, with(good, 64, good[64]-27), false, false},
		{"plain key, v 29", eoa, hash, with(good, 64, 29), false, false},
		{"plain key, 64 bytes", eoa, hash, good[:64], false, false},
		{"plain key, 66 bytes", eoa, hash, append(bytes.Clone(good), 0), false, false},
		{"plain key, 32 bytes", eoa, hash, good[:32], false, false},
		{"plain key, 31 bytes (123)", eoa, hash, good[:31], false, true},
		{"plain key, empty", eoa, hash, nil, false, true},
		{"contract that accepts all, 32 bytes", always, hash, make([]byte, 32), true, false},
		{"contract that accepts all, 31 bytes (123)", always, hash, make([]byte, 31), false, true},
		{"contract that accepts all, empty", always, hash, nil, false, true},
		{"zero address, unrecoverable", common.Address{}, hash, with(make([]byte, 65), 64, 27), false, false},
		{"zero address, signed by somebody", common.Address{}, hash, good, false, false},
		{"plain key, r and s 0", eoa, hash, with(make([]byte, 65), 64, 28), false, false},

		{"wallet, signed by its owner", deployedWallet, hash, good, true, false},
		{"wallet, signed by a stranger", deployedWallet, hash, bad, false, false},
		{"wallet, wrong hash", deployedWallet, other, good, false, false},
		{"contract returns the magic value", always, hash, good, true, false},
		{"contract returns the magic value and more", alwaysLonger, hash, good, true, false},
		{"contract returns another word", otherWord, hash, good, false, false},
		{"contract returns the magic value right aligned", rightAligned, hash, good, false, false},
		{"contract returns the magic value with dirty low bytes", dirty, hash, good, false, false},
		{"contract returns garbage", garbage, hash, good, false, false},
		{"contract returns nothing", nothing, hash, good, false, false},
		{"contract returns 31 bytes", short, hash, good, false, false},
		{"contract reverts", reverting, hash, good, false, false},
		{"contract never ends", endless, hash, good, false, false},

		{"wrapper, not deployed, factory deploys", future, hash, wrap(factory, deploys, good), true, false},
		{"wrapper, not deployed, signed by a stranger", future, hash, wrap(factory, deploys, bad), false, false},
		{"wrapper, already deployed", deployedWallet, hash, wrap(factory, deploys, good), true, false},
		{"wrapper, already deployed, signed by a stranger", deployedWallet, hash, wrap(factory, deploys, bad), false, false},
		{"wrapper, already deployed, factory would fail", deployedWallet, hash, wrap(reverting, deploys, good), true, false},
		{"wrapper, factory reverts", future, hash, wrap(reverting, deploys, good), false, false},
		{"wrapper, factory deploys elsewhere", future, hash, wrap(factory, deploysElsewhere, good), false, false},
		{"wrapper, factory missing", future, hash, wrap(missing, deploys, good), false, false},
		{"wrapper, factory is the zero address", future, hash, wrap(common.Address{}, deploys, good), false, false},
		{"wrapper around the signature of a plain key", eoa, hash, wrap(factory, deploys, good), false, false},
		{"wrapper with nothing in it, account accepts all", always, hash, wrap(factory, nil, nil), true, false},
		{"not deployed and no wrapper", future, hash, good, false, false},
		{"malformed wrapper: the suffix alone", always, hash, wrapperSuffix, false, true},
		{"malformed wrapper: cut off", always, hash, append(make([]byte, 64), wrapperSuffix...), false, true},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c.takeCalls()
			verdict, err := verifyNewest(t.Context(), v, tc.signer, tc.hash, tc.signature)
			require.NoError(t, err)
			require.Equal(t, tc.valid, verdict.Valid)
			require.Equal(t, !tc.local, verdict.AtBlock)
			if tc.local {
				require.Empty(t, c.takeCalls())
				return
			}
			require.Equal(t, c.newest(t), verdict.BlockNumber)
			calls := c.takeCalls()
			require.Len(t, calls, 2)
			require.Equal(t, "eth_blockNumber", calls[0].Method)
			require.Equal(t, "eth_call", calls[1].Method)
			require.NotContains(t, string(calls[1].Params[0]), `"to"`)
		})
	}
}

func TestEveryByteOfAPlainSignatureCounts(t *testing.T) {
	key := newKey(t)
	signer := crypto.PubkeyToAddress(key.PublicKey)
	hash := crypto.Keccak256Hash([]byte("signed"))
	good := sign(t, key, hash)
	require.True(t, signedByKey(signer, hash, good))
	for i := range good {
		require.False(t, signedByKey(signer, hash, with(good, i, good[i]^0x01)), "byte %d", i)
	}
}

func TestPlainSignatureAboveTheOrderIsInvalid(t *testing.T) {
	key := newKey(t)
	signer := crypto.PubkeyToAddress(key.PublicKey)
	hash := crypto.Keccak256Hash([]byte("signed"))
	good := sign(t, key, hash)
	order := crypto.S256().Params().N.Bytes()
	for name, at := range map[string]int{"r": 0, "s": 32} {
		for _, number := range [][]byte{order, bytes.Repeat([]byte{0xff}, 32), make([]byte, 32)} {
			changed := bytes.Clone(good)
			copy(changed[at:], number)
			require.False(t, signedByKey(signer, hash, changed), name)
		}
	}
}

func TestOwnerChangesBetweenTwoBlocks(t *testing.T) {
	first, second := newKey(t), newKey(t)
	c := startChain(t, contracts(t, crypto.PubkeyToAddress(first.PublicKey)))
	v := c.verifier(t)
	hash := crypto.Keccak256Hash([]byte("signed"))

	c.backend.Commit()
	before := c.newest(t)
	successor := crypto.PubkeyToAddress(second.PublicKey)
	after := c.send(t, deployedWallet, append([]byte{0x13, 0xaf, 0x40, 0x35}, common.LeftPadBytes(successor[:], 32)...))
	require.Greater(t, after, before)

	ask := func(key *ecdsa.PrivateKey, block *uint64) Verdict {
		verdict, err := v.Verify(t.Context(), Request{
			AccountID: accountID(deployedWallet), BlockNumber: block, Hash: hash, Signature: sign(t, key, hash),
		})
		require.NoError(t, err)
		return verdict
	}
	require.Equal(t, Verdict{Valid: true, BlockNumber: before, AtBlock: true}, ask(first, &before))
	require.Equal(t, Verdict{Valid: false, BlockNumber: after, AtBlock: true}, ask(first, &after))
	require.Equal(t, Verdict{Valid: false, BlockNumber: before, AtBlock: true}, ask(second, &before))
	require.Equal(t, Verdict{Valid: true, BlockNumber: after, AtBlock: true}, ask(second, &after))
	require.Equal(t, Verdict{Valid: false, BlockNumber: after, AtBlock: true}, ask(first, nil))
	require.Equal(t, Verdict{Valid: true, BlockNumber: after, AtBlock: true}, ask(second, nil))
}

// Edge case 105: block 0 is a block like any other.
func TestBlockZeroIsNotTheNewest(t *testing.T) {
	key := newKey(t)
	c := startChain(t, contracts(t, crypto.PubkeyToAddress(key.PublicKey)))
	v := c.verifier(t)
	c.send(t, deployedWallet, append([]byte{0x13, 0xaf, 0x40, 0x35}, make([]byte, 32)...))
	hash := crypto.Keccak256Hash([]byte("signed"))

	valid, err := v.VerifyAt(t.Context(), accountID(deployedWallet), 0, hash, sign(t, key, hash))
	require.NoError(t, err)
	require.True(t, valid)
	calls := c.takeCalls()
	require.Len(t, calls, 1)
	require.JSONEq(t, `"0x0"`, string(calls[0].Params[1]))
}

// An account that is deployed later answers by itself, wrapped or not.
func TestCounterfactualAccountIsDeployed(t *testing.T) {
	key := newKey(t)
	owner := crypto.PubkeyToAddress(key.PublicKey)
	c := startChain(t, contracts(t, owner))
	v := c.verifier(t)
	account, deploys := counterfactual(t, factory, owner, 7)
	hash := crypto.Keccak256Hash([]byte("signed"))
	inner := sign(t, key, hash)

	valid := func(signature []byte) bool {
		verdict, err := verifyNewest(t.Context(), v, account, hash, signature)
		require.NoError(t, err)
		return verdict.Valid
	}
	require.False(t, valid(inner))
	require.True(t, valid(wrap(factory, deploys, inner)))
	code, err := c.backend.Client().CodeAt(t.Context(), account, nil)
	require.NoError(t, err)
	require.Empty(t, code, "a verification leaves nothing on the chain")

	c.send(t, factory, deploys)
	require.True(t, valid(inner))
	require.True(t, valid(wrap(factory, deploys, inner)))
}
