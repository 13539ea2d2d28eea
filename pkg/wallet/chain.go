package wallet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// maxAnswerBytes bounds how much of an answer is read. Ours have a few bytes;
// an error object may carry what a contract reverted with.
const maxAnswerBytes = 1 << 20

// chain speaks to one endpoint.
type chain struct {
	id      string
	client  *rpc.Client
	timeout time.Duration
	// places has room for as many elements as verifications may be in flight.
	// Each makes its calls one after the other.
	places chan struct{}
}

// newChain prepares a chain. It does not connect: over HTTP a client has nothing
// to do before its first call.
func newChain(id string, endpoint Endpoint, timeout time.Duration, maxCalls int, transport http.RoundTripper) (*chain, error) {
	client, err := rpc.DialOptions(context.Background(), string(endpoint), rpc.WithHTTPClient(&http.Client{
		Transport: boundedTransport{transport},
		// A redirect could lead anywhere, with the account and signature in tow.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}))
	if err != nil {
		return nil, fault.Errorf(fault.Broken, "the endpoint of chain %s cannot be used, expected an HTTP URL", id)
	}
	return &chain{id: id, client: client, timeout: timeout, places: make(chan struct{}, maxCalls)}, nil
}

// run calls the validator at a block, or at the newest one if block is nil, and
// returns its answer and the block. Every failure is classified: of the
// caller's context as that context says, anything else as Unavailable.
func (c *chain) run(ctx context.Context, input []byte, block *uint64) (answer []byte, at uint64, err error) {
	bounded, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-bounded.Done():
		return nil, 0, c.failure(ctx, bounded, errBusy)
	}

	if block == nil {
		var newest hexutil.Uint64
		if err := c.client.CallContext(bounded, &newest, "eth_blockNumber"); err != nil {
			return nil, 0, c.failure(ctx, bounded, err)
		}
		at = uint64(newest)
	} else {
		at = *block
	}
	var result hexutil.Bytes
	call := map[string]hexutil.Bytes{"data": input} // no `to`: the input runs as init code
	if err := c.client.CallContext(bounded, &result, "eth_call", call, hexutil.Uint64(at)); err != nil {
		return nil, 0, c.failure(ctx, bounded, err)
	}
	return result, at, nil
}

var errBusy = errors.New("no free place")

// failure classifies an error of a call. It keeps nothing of err's text: that of
// the HTTP client names the URL, and that of a provider may repeat the request.
func (c *chain) failure(ctx, bounded context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fault.Of(ctx.Err())
	case errors.Is(err, errBusy):
		return fault.Errorf(fault.Unavailable, "chain %s is busy: all %d places stayed taken for %s", c.id, cap(c.places), c.timeout)
	case bounded.Err() != nil:
		return fault.Errorf(fault.Unavailable, "chain %s is unavailable: no answer within %s", c.id, c.timeout)
	default:
		return fault.Errorf(fault.Unavailable, "chain %s is unavailable: its endpoint %s", c.id, describe(err))
	}
}

// describe says in our own words what an endpoint did.
func describe(err error) string {
	var (
		status  rpc.HTTPError
		refusal rpc.Error
		lookup  *net.DNSError
		cert    *tls.CertificateVerificationError
		errno   syscall.Errno
		network *net.OpError
		syntax  *json.SyntaxError
	)
	switch {
	case errors.As(err, &status):
		return "answered with HTTP status " + strconv.Itoa(status.StatusCode)
	case errors.As(err, &refusal):
		return "answered with JSON-RPC error " + strconv.Itoa(refusal.ErrorCode())
	case errors.As(err, &lookup):
		return "has a host name that could not be resolved"
	case errors.As(err, &cert):
		return "has a certificate that is not trusted"
	case errors.As(err, &errno):
		return "cannot be reached: " + errno.Error()
	case errors.As(err, &network):
		return "cannot be reached"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "ended its answer early"
	case errors.As(err, &syntax):
		return "answered with something else than JSON"
	default:
		return "gave no usable answer"
	}
}

// boundedTransport cuts answers off at maxAnswerBytes.
type boundedTransport struct{ http.RoundTripper }

func (t boundedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, maxAnswerBytes), response.Body}
	}
	return response, err
}
