package wallet

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// secretPath stands for the access key that endpoints have in their URL.
const secretPath = "/v2/secret-access-key"

// stranded handles a request by never answering: until the client is gone.
func stranded(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice
	<-r.Context().Done()
}

func answering(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// dropping closes the connection after writing what is given.
func dropping(raw string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, raw)
		_ = conn.Close()
	}
}

// Edge case 103 and invariant I10: whatever an endpoint does wrong is Unavailable,
// never a verdict, and is not remembered.
//
// Proves I10.
func TestFailuresAreNeverVerdicts(t *testing.T) {
	answer := func(rest string) http.HandlerFunc {
		return answering(http.StatusOK, `{"jsonrpc":"2.0","id":1,`+rest+`}`)
	}
	cases := map[string]struct {
		handler http.HandlerFunc
		text    string
	}{
		"times out":                {stranded, "no answer within"},
		"JSON-RPC error":           {answer(`"error":{"code":-32000,"message":"missing trie node secret-access-key"}`), "JSON-RPC error -32000"},
		"JSON-RPC error of revert": {answer(`"error":{"code":3,"message":"execution reverted","data":"0x00"}`), "JSON-RPC error 3"},
		"error beside a result":    {answer(`"result":"0x01","error":{"code":-32005,"message":"rate limit"}`), "JSON-RPC error -32005"},
		"HTTP 500":                 {answering(http.StatusInternalServerError, "secret-access-key"), "HTTP status 500"},
		"HTTP 500 with a result":   {answering(http.StatusInternalServerError, `{"jsonrpc":"2.0","id":1,"result":"0x01"}`), "HTTP status 500"},
		"HTTP 429":                 {answering(http.StatusTooManyRequests, ""), "HTTP status 429"},
		"HTTP redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, "HTTP status 307"},
		"drops the connection":            {dropping(""), "ended its answer early"},
		"drops the connection half-way":   {dropping("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"jsonrpc\":"), "ended its answer early"},
		"speaks no HTTP":                  {dropping("SSH-2.0-secret-access-key\r\n"), "gave no usable answer"},
		"malformed JSON":                  {answering(http.StatusOK, `{"jsonrpc":"2.0","id":1,"result":"0x01"`), "ended its answer early"},
		"no JSON":                         {answering(http.StatusOK, `<html>secret-access-key</html>`), "something else than JSON"},
		"no answer at all":                {answering(http.StatusOK, ``), "ended its answer early"},
		"neither result nor error":        {answer(`"more":1`), "gave no usable answer"},
		"result null":                     {answer(`"result":null`), "gave no usable answer"},
		"result is a number":              {answer(`"result":1`), "gave no usable answer"},
		"result is odd hex":               {answer(`"result":"0x1"`), "gave no usable answer"},
		"result is no hex":                {answer(`"result":"0xzz"`), "gave no usable answer"},
		"result without 0x":               {answer(`"result":"01"`), "gave no usable answer"},
		"result is an object":             {answer(`"result":{"valid":true}`), "gave no usable answer"},
		"a batch":                         {answering(http.StatusOK, `[{"jsonrpc":"2.0","id":1,"result":"0x01"}]`), "gave no usable answer"},
		"an answer longer than the bound": {answer(`"result":"0x` + strings.Repeat("00", maxAnswerBytes/2) + `"`), "ended its answer early"},
	}
	signature := bytes.Repeat([]byte{1}, 65)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tc.handler)
			t.Cleanup(server.Close)
			v := newVerifier(t, server.URL+secretPath, func(cfg *Config) {
				if name == "times out" {
					cfg.Timeout = 500 * time.Millisecond // a place is free at once, or the text is another
				}
			})
			var results []string
			v.OnResult = func(result string) { results = append(results, result) }

			block := uint64(1)
			for _, at := range []*uint64{nil, &block, &block} {
				verdict, err := v.Verify(t.Context(), Request{AccountID: accountID(always), BlockNumber: at, Signature: signature})
				requireUnavailable(t, err, tc.text)
				require.NotContains(t, err.Error(), strings.TrimPrefix(server.URL, "http://"))
				require.Zero(t, verdict)
			}
			require.Equal(t, []string{ResultError, ResultError, ResultError}, results)
			require.Zero(t, v.cache.verdicts.Len())
		})
	}
}

func requireUnavailable(t *testing.T, err error, text string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	require.Contains(t, fault.Of(err).Text(), text)
	require.NotContains(t, err.Error(), "secret-access-key")
	require.NotContains(t, err.Error(), strings.ToLower(always.Hex()))
}

// An endpoint that nobody listens at stops nothing at start, and serves as soon
// as it is there.
func TestEndpointThatIsDownAtStart(t *testing.T) {
	listener, err := freeport.Listen()
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())

	v := newVerifier(t, "http://"+address+secretPath)
	signature := bytes.Repeat([]byte{1}, 65)
	_, err = v.VerifyAt(t.Context(), accountID(always), 1, [32]byte{}, signature)
	requireUnavailable(t, err, "cannot be reached: connection refused")
	require.NotContains(t, err.Error(), address)

	listener, err = net.Listen("tcp", address)
	require.NoError(t, err)
	server := &http.Server{Handler: answering(http.StatusOK, `{"jsonrpc":"2.0","id":2,"result":"0x01"}`), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	valid, err := v.VerifyAt(t.Context(), accountID(always), 1, [32]byte{}, signature)
	require.NoError(t, err)
	require.True(t, valid)
}

func TestHostNameThatDoesNotExist(t *testing.T) {
	v := newVerifier(t, "http://secret-access-key.invalid/")
	// Go's own resolver, which finds no server to ask, whatever that of the machine does.
	lookup := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }}
	v.transport.Proxy, v.transport.DialContext = nil, (&net.Dialer{Resolver: &lookup}).DialContext
	_, err := v.VerifyAt(t.Context(), accountID(always), 1, [32]byte{}, make([]byte, 65))
	requireUnavailable(t, err, "could not be resolved")
}

func TestCertificateThatIsNotTrusted(t *testing.T) {
	server := httptest.NewUnstartedServer(answering(http.StatusOK, ""))
	server.Config.ErrorLog = discardLog()
	server.StartTLS()
	t.Cleanup(server.Close)
	v := newVerifier(t, server.URL+secretPath)
	_, err := v.VerifyAt(t.Context(), accountID(always), 1, [32]byte{}, make([]byte, 65))
	requireUnavailable(t, err, "certificate that is not trusted")
}

// Case 102: the verdicts are what the validator program can return.
func TestAnswersOfTheValidator(t *testing.T) {
	key := newKey(t)
	hash := crypto.Keccak256Hash([]byte("signed"))
	signer := crypto.PubkeyToAddress(key.PublicKey)
	plain := sign(t, key, hash)
	cases := map[string]struct {
		result    string
		signature []byte
		valid     bool
	}{
		"01":                     {"0x01", make([]byte, 65), true},
		"00":                     {"0x00", plain, false},
		"02 and the key signed":  {"0x02", plain, true},
		"02 and the key did not": {"0x02", make([]byte, 65), false},
		"00 for a wrapper":       {"0x00", wrap(factory, nil, plain), false},
		"01 for a wrapper":       {"0x01", wrap(factory, nil, plain), true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(answering(http.StatusOK, `{"jsonrpc":"2.0","id":1,"result":"`+tc.result+`"}`))
			t.Cleanup(server.Close)
			v := newVerifier(t, server.URL)
			var results []string
			v.OnResult = func(result string) { results = append(results, result) }
			valid, err := v.VerifyAt(t.Context(), accountID(signer), 1, hash, tc.signature)
			require.NoError(t, err)
			require.Equal(t, tc.valid, valid)
			want := map[bool]string{true: ResultValid, false: ResultInvalid}[tc.valid]
			require.Equal(t, []string{want}, results)
		})
	}
}

// What the validator never returns is no verdict, on an account with code or without:
// a node that has pruned the state of the block answers with nothing.
func TestAnswersThatTheValidatorNeverGives(t *testing.T) {
	key := newKey(t)
	signer := crypto.PubkeyToAddress(key.PublicKey)
	plain := sign(t, key, [32]byte{})
	cases := map[string][]byte{
		"0x": plain, "0x03": plain, "0xff": plain, "0x0A": plain, "0x0102": plain, "0x0100": plain, "0x0000": plain, "0x0200": plain,
		"0x" + strings.Repeat("0", 64): plain, "0x" + oneWord: plain, "0x" + magicWord: plain, "0x08c379a0" + oneWord: plain,
		// It deploys a wrapped account first, and then there is code or it says 00.
		"0x02": wrap(factory, nil, plain),
	}
	for result, signature := range cases {
		t.Run(result, func(t *testing.T) {
			server := httptest.NewServer(answering(http.StatusOK, `{"jsonrpc":"2.0","id":1,"result":"`+result+`"}`))
			t.Cleanup(server.Close)
			v := newVerifier(t, server.URL)
			var results []string
			v.OnResult = func(result string) { results = append(results, result) }
			_, err := v.VerifyAt(t.Context(), accountID(signer), 1, [32]byte{}, signature)
			requireUnavailable(t, err, "never gives")
			require.Equal(t, []string{ResultError}, results)
			require.Zero(t, v.cache.verdicts.Len())
		})
	}
}

// A block the node does not have, in the future or pruned, is its failure.
func TestBlockThatIsNotThere(t *testing.T) {
	c := startChain(t, contracts(t, common.Address{}))
	v := c.verifier(t)
	for _, block := range []uint64{c.newest(t) + 1, 1 << 62, 1<<64 - 1} {
		_, err := v.VerifyAt(t.Context(), accountID(always), block, [32]byte{}, make([]byte, 65))
		requireUnavailable(t, err, "JSON-RPC error")
	}
}

// Edge case 100 (docs/validation.md#edge-cases).
//
// Proves IDENT-061.
func TestChainWithoutVerifier(t *testing.T) {
	server := httptest.NewServer(answering(http.StatusOK, `{"jsonrpc":"2.0","id":1,"result":"0x01"}`))
	t.Cleanup(server.Close)
	v := newVerifier(t, server.URL)
	var results []string
	v.OnResult = func(result string) { results = append(results, result) }
	accounts := []string{
		"eip155:2:" + always.Hex(),
		"eip155:01337:" + always.Hex(),
		"eip155:0x539:" + always.Hex(),
		"bip122:000000000019d6689c085ae165831e93:128Lkh3S7CkDTBZ8W7BbpsN3YYizJMp8p6",
		"eip155:2:no-address",
	}
	for _, account := range accounts {
		_, err := v.VerifyAt(t.Context(), account, 1, [32]byte{}, nil)
		requireUnavailable(t, err, "without a verifier, expected one of "+testChain)
	}
	require.Empty(t, results, "no chain failed: the caller named one that nobody has")

	none, err := New(Config{Timeout: time.Second, MaxCalls: 1, CacheEntries: 1})
	require.NoError(t, err)
	_, err = none.VerifyAt(t.Context(), accounts[0], 1, [32]byte{}, nil)
	requireUnavailable(t, err, "none is configured")
}

// Edge case 101 (docs/validation.md#edge-cases).
func TestAccountThatIsNotCAIP10(t *testing.T) {
	v := newVerifier(t, "http://127.0.0.1:1")
	v.OnResult = func(string) { t.Error("a malformed request is no verification") }
	for _, account := range []string{
		"", "eip155:1337", always.Hex(), accountID(always) + ":more", "EIP155:1337:" + always.Hex(), "eip155:1337:",
	} {
		_, err := v.VerifyAt(t.Context(), account, 1, [32]byte{}, make([]byte, 65))
		require.Error(t, err, account)
		require.Equal(t, fault.Invalid, fault.KindOf(err), account)
	}
}

// An address that is none is a definite "invalid" on a chain that is configured.
func TestAddressThatIsNone(t *testing.T) {
	v := newVerifier(t, "http://127.0.0.1:1")
	digits := strings.TrimPrefix(always.Hex(), "0x")
	for _, address := range []string{"0x", digits[:39], digits + "0", "0x" + digits[:38], "0X" + digits, strings.Repeat("g", 40), "0x0x" + digits[:36]} {
		valid, err := v.VerifyAt(t.Context(), testChain+":"+address, 1, [32]byte{}, make([]byte, 65))
		require.NoError(t, err, address)
		require.False(t, valid, address)
	}
}

func TestAddressInAnySpelling(t *testing.T) {
	c := startChain(t, contracts(t, common.Address{}))
	v := c.verifier(t)
	digits := strings.TrimPrefix(always.Hex(), "0x")
	for _, address := range []string{digits, "0x" + digits, strings.ToUpper(digits), "0x" + strings.ToUpper(digits)} {
		valid, err := v.VerifyAt(t.Context(), testChain+":"+address, 0, [32]byte{}, make([]byte, 65))
		require.NoError(t, err, address)
		require.True(t, valid, address)
	}
	require.Len(t, c.takeCalls(), 1, "one question however it is spelled")
}

// A caller that goes away learns that, and nothing about the chain.
func TestCallerGoesAway(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(stranded))
	t.Cleanup(server.Close)
	v := newVerifier(t, server.URL)
	v.OnResult = func(string) { t.Error("no result of a chain") }

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := v.VerifyAt(cancelled, accountID(always), 1, [32]byte{}, make([]byte, 65))
	require.Equal(t, fault.Cancelled, fault.KindOf(err))

	late, cancelLate := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelLate()
	_, err = v.VerifyAt(late, accountID(always), 1, [32]byte{}, make([]byte, 65))
	require.Equal(t, fault.Late, fault.KindOf(err))
}
