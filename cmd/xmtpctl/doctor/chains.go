package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/xmtp-selfhosted/backend/pkg/wallet"
)

// chains asks each endpoint which chain it serves and for its newest block.
func (d *doctor) chains(ctx context.Context) {
	var endpoints wallet.Endpoints
	if err := endpoints.UnmarshalText([]byte(d.environment["XMTP_CHAINS"])); err != nil {
		return // a finding of the configuration
	}
	if len(endpoints) == 0 {
		d.warn("chain", "set XMTP_CHAINS if users have contract wallets", "there is none: signatures of contract wallets cannot be verified")
	}
	for _, id := range endpoints.IDs() {
		area := "chain " + id
		number, err := d.call(ctx, string(endpoints[id]), "eth_chainId")
		if err != nil {
			d.bad(area, "does the endpoint in XMTP_CHAINS answer from here, and is its key still good?", "cannot be asked: %s", d.without(err))
			continue
		}
		if expected := strings.TrimPrefix(id, "eip155:"); strconv.FormatUint(number, 10) != expected {
			d.bad(area, "correct the endpoint in XMTP_CHAINS", "the endpoint serves chain %d", number)
			continue
		}
		block, err := d.call(ctx, string(endpoints[id]), "eth_blockNumber")
		if err != nil || block == 0 {
			d.bad(area, "is the node behind the endpoint in step with its chain?", "it does not know the newest block")
			continue
		}
		d.good(area, "answers, at block %d", block)
	}
}

// call asks for a number by JSON-RPC.
func (d *doctor) call(ctx context.Context, endpoint, method string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":[]}`, method)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, errors.New("the endpoint is no URL")
	}
	request.Header.Set("content-type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) { // it repeats the URL, which may hold a key
		return 0, wrapped.Err
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("it answers with HTTP status %d", response.StatusCode)
	}
	var answer struct{ Result string }
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<16)).Decode(&answer); err != nil {
		return 0, errors.New("it does not answer in JSON-RPC")
	}
	number, err := strconv.ParseUint(strings.TrimPrefix(answer.Result, "0x"), 16, 64)
	if err != nil {
		return 0, fmt.Errorf("it does not answer %s with a number", method)
	}
	return number, nil
}
