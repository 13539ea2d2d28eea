package wallet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// blocks answers for blocks, by number or "latest", as JSON, and says yes to each
// signature.
type blocks struct {
	answers map[string]string
	asked   atomic.Int32
}

func (b *blocks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request struct {
		ID     json.RawMessage   `json:"id"`
		Method string            `json:"method"`
		Params []json.RawMessage `json:"params"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result := `"0x01"`
	if request.Method == "eth_getBlockByNumber" {
		b.asked.Add(1)
		var name string
		_ = json.Unmarshal(request.Params[0], &name)
		result = b.answers[name]
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, request.ID, result)
}

func blockOf(number, at uint64) string {
	return fmt.Sprintf(`{"number":"0x%x","timestamp":"0x%x","hash":"0x00","transactions":["0x00"]}`, number, at)
}

// IDENT-062.
//
// Proves IDENT-062.
func TestTheBlockOfAnAdmittedSignatureIsRecent(t *testing.T) {
	const head, now = 100, 1_000_000
	cases := map[string]struct {
		block   uint64
		answers map[string]string
		want    fault.Kind
		text    string
	}{
		"the newest":           {head, map[string]string{"latest": blockOf(head, now), "0x64": blockOf(head, now)}, 0, ""},
		"above the newest":     {head + 1, map[string]string{"latest": blockOf(head, now), "0x65": blockOf(head+1, now)}, fault.Invalid, "above the newest"},
		"the last block there": {1<<64 - 1, map[string]string{"latest": blockOf(head, now)}, fault.Invalid, "above the newest"},
		"as old as allowed":    {50, map[string]string{"latest": blockOf(head, now), "0x32": blockOf(50, now-1800)}, 0, ""},
		"a second older":       {50, map[string]string{"latest": blockOf(head, now), "0x32": blockOf(50, now-1801)}, fault.Invalid, "too old"},
		"block 0":              {0, map[string]string{"latest": blockOf(head, now), "0x0": blockOf(0, 0)}, fault.Invalid, "too old"},
		"later than newest":    {50, map[string]string{"latest": blockOf(head, now), "0x32": blockOf(50, now+1)}, fault.Invalid, "a later time"},
		"not there":            {50, map[string]string{"latest": blockOf(head, now), "0x32": "null"}, fault.Unavailable, "gave no usable answer"},
		"no newest":            {50, map[string]string{"latest": "null", "0x32": blockOf(50, now)}, fault.Unavailable, "gave no usable answer"},
		"without a time":       {50, map[string]string{"latest": blockOf(head, now), "0x32": `{"number":"0x32"}`}, fault.Unavailable, "gave no usable answer"},
		"without a number":     {50, map[string]string{"latest": `{"timestamp":"0x1"}`, "0x32": blockOf(50, now)}, fault.Unavailable, "gave no usable answer"},
		"no block at all":      {50, map[string]string{"latest": `"0x64"`, "0x32": blockOf(50, now)}, fault.Unavailable, "gave no usable answer"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			chain := &blocks{answers: c.answers}
			server := httptest.NewServer(chain)
			t.Cleanup(server.Close)
			verify := func(age time.Duration) (bool, error) {
				v := newVerifier(t, server.URL, func(cfg *Config) { cfg.MaxBlockAge = age })
				return v.VerifyAdmitted(t.Context(), accountID(always), c.block, [32]byte{}, make([]byte, 65))
			}
			valid, err := verify(1800 * time.Second)
			require.Equal(t, c.want == 0, valid)
			if c.want == 0 {
				require.NoError(t, err)
			} else {
				require.Equal(t, c.want, fault.KindOf(err), err)
				require.Contains(t, fault.Of(err).Text(), c.text)
			}
			require.LessOrEqual(t, chain.asked.Load(), int32(2))

			// Off, no chain is asked for a block.
			chain.asked.Store(0)
			valid, err = verify(0)
			require.NoError(t, err)
			require.True(t, valid)
			require.Zero(t, chain.asked.Load())
		})
	}
}

// The verdict itself does not depend on the age, and Verify never asks for it.
//
// Proves IDENT-062.
func TestOnlyAdmissionAsksForTheAge(t *testing.T) {
	c := startChain(t, contracts(t, common.Address{}))
	v := c.verifier(t, func(cfg *Config) { cfg.MaxBlockAge = time.Minute })
	old := c.newest(t)
	admit := func(block uint64) error {
		valid, err := v.VerifyAdmitted(t.Context(), accountID(always), block, [32]byte{}, make([]byte, 65))
		require.Equal(t, err == nil, valid)
		return err
	}
	require.NoError(t, admit(old))
	require.NoError(t, c.backend.AdjustTime(time.Hour))
	require.Equal(t, fault.Invalid, fault.KindOf(admit(old)), "the chain went on")
	require.NoError(t, admit(c.newest(t)))
	require.Equal(t, fault.Invalid, fault.KindOf(admit(c.newest(t)+1)))

	c.takeCalls()
	valid, err := v.VerifyAt(t.Context(), accountID(always), old, [32]byte{1}, make([]byte, 65))
	require.NoError(t, err)
	require.True(t, valid)
	require.Len(t, c.takeCalls(), 1)
}

// A failing chain is no refusal, here neither (IDENT-061).
//
// Proves IDENT-061.
func TestAnUnknownAgeIsUnavailable(t *testing.T) {
	server := httptest.NewServer(answering(http.StatusBadGateway, ""))
	t.Cleanup(server.Close)
	v := newVerifier(t, server.URL, func(cfg *Config) { cfg.MaxBlockAge = time.Hour })
	var results []string
	v.OnResult = func(result string) { results = append(results, result) }
	for _, account := range []string{accountID(always), "eip155:5:" + always.Hex()} {
		_, err := v.VerifyAdmitted(t.Context(), account, 1, [32]byte{}, make([]byte, 65))
		requireUnavailable(t, err, "")
	}
	require.Equal(t, []string{ResultError}, results, "of the chain that failed, not of the one that nobody has")
}
