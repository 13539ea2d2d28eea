package wallet

import (
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/ethclient/simulated"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Two kinds of goroutine that a go-ethereum node leaves behind.
		goleak.IgnoreAnyFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"),
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/core.(*txSenderCacher).cache"),
	)
}

// testChain is the CAIP-2 id of the chain in the tests. The simulated chain has
// that number, though nothing here depends on it.
const testChain = "eip155:1337"

// recordedCall is a request that reached the endpoint.
type recordedCall struct {
	Method string
	Params []json.RawMessage
}

// simulatedChain is a go-ethereum node with its own RPC behind an HTTP server
// that records what it is asked and can misbehave.
type simulatedChain struct {
	URL     string
	backend *simulated.Backend
	node    *rpc.Client
	rich    *ecdsa.PrivateKey

	mu     sync.Mutex
	calls  []recordedCall
	before func(http.ResponseWriter, *http.Request) (done bool)
}

// startChain starts a chain with the given accounts in its first block.
func startChain(t *testing.T, accounts types.GenesisAlloc) *simulatedChain {
	t.Helper()
	// A socket path may have about 100 bytes, which t.TempDir can exceed.
	dir, err := os.MkdirTemp("", "chain")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "rpc")

	c := &simulatedChain{rich: newKey(t)}
	genesis := types.GenesisAlloc{crypto.PubkeyToAddress(c.rich.PublicKey): {Balance: big.NewInt(1e18)}}
	for address, account := range accounts {
		genesis[address] = account
	}
	c.backend = simulated.NewBackend(genesis, func(nodeConf *node.Config, ethConf *ethconfig.Config) {
		nodeConf.IPCPath = socket
		ethConf.RPCGasCap = 5_000_000 // so that endless contracts end soon
	})
	t.Cleanup(func() { require.NoError(t, c.backend.Close()) })
	c.node, err = rpc.DialContext(t.Context(), socket)
	require.NoError(t, err)
	t.Cleanup(c.node.Close)

	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// ServeHTTP passes a JSON-RPC request on to the node as it is.
func (c *simulatedChain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	before := c.before
	c.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	var request struct {
		ID json.RawMessage `json:"id"`
		recordedCall
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, "not JSON", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	c.calls = append(c.calls, request.recordedCall)
	c.mu.Unlock()

	params := make([]any, len(request.Params))
	for i, p := range request.Params {
		params[i] = p
	}
	answer := map[string]any{"jsonrpc": "2.0", "id": request.ID}
	var result json.RawMessage
	err := c.node.CallContext(r.Context(), &result, request.Method, params...)
	var refusal rpc.Error
	switch {
	case errors.As(err, &refusal):
		answer["error"] = map[string]any{"code": refusal.ErrorCode(), "message": refusal.Error()}
	case err != nil:
		http.Error(w, "the node is away", http.StatusBadGateway)
		return
	default:
		answer["result"] = result
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// misbehave makes f handle every request until the next call; nil ends it. A
// request that f does not finish goes on to the node.
func (c *simulatedChain) misbehave(f func(http.ResponseWriter, *http.Request) (done bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = f
}

// takeCalls returns the calls since it was last called.
func (c *simulatedChain) takeCalls() []recordedCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

// newest is the number of the newest block.
func (c *simulatedChain) newest(t *testing.T) uint64 {
	t.Helper()
	number, err := c.backend.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	return number
}

// send puts a transaction into a new block and returns the block's number.
func (c *simulatedChain) send(t *testing.T, to common.Address, data []byte) uint64 {
	t.Helper()
	client := c.backend.Client()
	sender := crypto.PubkeyToAddress(c.rich.PublicKey)
	nonce, err := client.PendingNonceAt(t.Context(), sender)
	require.NoError(t, err)
	chainID, err := client.ChainID(t.Context())
	require.NoError(t, err)
	tx, err := types.SignNewTx(c.rich, types.LatestSignerForChainID(chainID), &types.DynamicFeeTx{
		ChainID: chainID, Nonce: nonce, To: &to, Data: data, Gas: 1_000_000,
		GasTipCap: big.NewInt(1e9), GasFeeCap: big.NewInt(10e9),
	})
	require.NoError(t, err)
	require.NoError(t, client.SendTransaction(t.Context(), tx))
	c.backend.Commit()
	receipt, err := client.TransactionReceipt(t.Context(), tx.Hash())
	require.NoError(t, err)
	require.Equal(t, types.ReceiptStatusSuccessful, receipt.Status)
	return receipt.BlockNumber.Uint64()
}

// verifier returns a verifier of the chain; change, if given, edits its
// configuration.
func (c *simulatedChain) verifier(t *testing.T, change ...func(*Config)) *Verifier {
	t.Helper()
	return newVerifier(t, c.URL, change...)
}

func newVerifier(t *testing.T, url string, change ...func(*Config)) *Verifier {
	t.Helper()
	cfg := Config{Chains: Endpoints{testChain: Endpoint(url)}, Timeout: 30 * time.Second, MaxCalls: 8, CacheEntries: 100}
	for _, f := range change {
		f(&cfg)
	}
	v, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(v.Close)
	return v
}

func accountID(address common.Address) string { return testChain + ":" + address.Hex() }

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	return key
}

// sign returns r, s and v 27 or 28.
func sign(t *testing.T, key *ecdsa.PrivateKey, hash [32]byte) []byte {
	t.Helper()
	signature, err := crypto.Sign(hash[:], key)
	require.NoError(t, err)
	signature[64] += 27
	return signature
}

// verifyNewest verifies at the newest block.
func verifyNewest(ctx context.Context, v *Verifier, address common.Address, hash [32]byte, signature []byte) (Verdict, error) {
	return v.Verify(ctx, Request{AccountID: accountID(address), Hash: hash, Signature: signature})
}
