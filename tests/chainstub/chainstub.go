// Package chainstub is a JSON-RPC endpoint that gives the verdicts of the
// recorded session: its contract-wallet signatures are bytes that no contract
// would accept, so a real chain cannot stand in.
package chainstub

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/recording"
)

// Stub accepts the recorded signatures and no others.
type Stub struct {
	// URL is its endpoint.
	URL string
	// Calls counts the verifications it was asked for.
	Calls atomic.Int64

	verdicts []verdict
}

// verdict is what an accepted call contains.
type verdict struct{ account, hash, signature, block string }

// Chains are the chains of the recorded accounts.
var Chains = []string{"eip155:1", "eip155:8453"}

// Start runs a stub until the test ends.
func Start(t testing.TB) *Stub {
	t.Helper()
	session, err := recording.Load()
	require.NoError(t, err)
	s := &Stub{}
	for _, p := range session.Payloads {
		if p.NeedsChain {
			var expect any
			require.NoError(t, json.Unmarshal(p.Expect, &expect))
			s.collect(t, expect)
		}
	}
	require.NotEmpty(t, s.verdicts)
	server := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// Environment is the value of XMTP_CHAINS that names the stub for every chain.
func (s *Stub) Environment() string {
	entries := make([]string, len(Chains))
	for i, chain := range Chains {
		entries[i] = chain + "=" + s.URL
	}
	return strings.Join(entries, ",")
}

// collect finds every signature with an account in an account of an update.
func (s *Stub) collect(t testing.TB, value any) {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			s.collect(t, element)
		}
	case map[string]any:
		if account, ok := v["account_id"].(string); ok {
			parts := strings.Split(account, ":")
			block, ok := v["block_number"].(float64)
			require.True(t, ok)
			s.verdicts = append(s.verdicts, verdict{
				account: strings.TrimPrefix(parts[2], "0x"), hash: v["hash"].(string), signature: v["signature"].(string),
				block: fmt.Sprintf("0x%x", uint64(block)),
			})
		}
		for _, element := range v {
			s.collect(t, element)
		}
	}
}

func (s *Stub) serve(w http.ResponseWriter, r *http.Request) {
	var request struct {
		ID     json.RawMessage   `json:"id"`
		Method string            `json:"method"`
		Params []json.RawMessage `json:"params"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var result any
	switch request.Method {
	case "eth_blockNumber":
		result = fmt.Sprintf("0x%x", newest)
	case "eth_getBlockByNumber":
		result = block(request.Params)
	case "eth_call":
		s.Calls.Add(1)
		result = s.verdict(request.Params)
	default:
		http.Error(w, "unknown method", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": request.ID, "result": result})
}

// The recording names blocks that are a million apart. The stub's chain makes them so
// fast that all are young enough for an update that is published (IDENT-062).
const (
	newest          = 20_000_000
	blocksPerSecond = 1000
)

// block is a block by its number, or the newest.
func block(params []json.RawMessage) any {
	number := uint64(newest)
	var name string
	if len(params) == 0 || json.Unmarshal(params[0], &name) != nil {
		return nil
	}
	if name != "latest" {
		var err error
		if number, err = strconv.ParseUint(name, 0, 64); err != nil || number > newest {
			return nil
		}
	}
	return map[string]string{"number": fmt.Sprintf("0x%x", number), "timestamp": fmt.Sprintf("0x%x", number/blocksPerSecond)}
}

func (s *Stub) verdict(params []json.RawMessage) string {
	var call struct{ Input, Data string }
	var block string
	if len(params) < 2 || json.Unmarshal(params[0], &call) != nil || json.Unmarshal(params[1], &block) != nil {
		return "0x00"
	}
	code, err := hex.DecodeString(strings.TrimPrefix(call.Input+call.Data, "0x"))
	if err != nil {
		return "0x00"
	}
	text := hex.EncodeToString(code)
	for _, known := range s.verdicts {
		if block == known.block && strings.Contains(text, known.account) && strings.Contains(text, known.hash) && strings.Contains(text, known.signature) {
			return "0x01"
		}
	}
	return "0x00"
}
