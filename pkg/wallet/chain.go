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
// returns its answer and the block.
func (c *chain) run(ctx context.Context, input []byte, block *uint64) (answer []byte, at uint64, err error) {
	err = c.with(ctx, func(ctx context.Context) error {
		if block == nil {
			var newest hexutil.Uint64
			if err := c.client.CallContext(ctx, &newest, "eth_blockNumber"); err != nil {
				return err
			}
			at = uint64(newest)
		} else {
			at = *block
		}
		var result hexutil.Bytes
		call := map[string]hexutil.Bytes{"data": input} // no `to`: the input runs as init code
		err := c.client.CallContext(ctx, &result, "eth_call", call, hexutil.Uint64(at))
		answer = result
		return err
	})
	return answer, at, err
}

// with makes calls in one of the chain's places. Every failure is classified: of the
// caller's context as that context says, anything else as Unavailable, unless it is a
// verdict already.
func (c *chain) with(ctx context.Context, calls func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-bounded.Done():
		return c.failure(ctx, bounded, errBusy)
	}
	err := calls(bounded)
	if err == nil || fault.KindOf(err) == fault.Invalid {
		return err
	}
	return c.failure(ctx, bounded, err)
}

// header is what is read of a block.
type header struct {
	Number    *hexutil.Uint64 `json:"number"`
	Timestamp *hexutil.Uint64 `json:"timestamp"` // Unix seconds
}

var errNoBlock = errors.New("no such block, or one without number and time")

// checkAge requires that a block exists and is at most so much older than the newest
// one. If not, the error is of kind Invalid.
func (c *chain) checkAge(ctx context.Context, block uint64, most time.Duration) error {
	return c.with(ctx, func(ctx context.Context) error {
		newest, err := c.header(ctx, "latest")
		if err != nil {
			return err
		}
		if block > uint64(*newest.Number) {
			return fault.Invalidf(fault.NoReason, "the block of the signature is above the newest of its chain")
		}
		its, err := c.header(ctx, hexutil.Uint64(block))
		if err != nil {
			return err
		}
		switch at, head := uint64(*its.Timestamp), uint64(*newest.Timestamp); {
		case at > head:
			return fault.Invalidf(fault.NoReason, "the block of the signature has a later time than the newest of its chain")
		case head-at > uint64(most/time.Second):
			return fault.Invalidf(fault.NoReason, "the block of the signature is too old, expected one of the last %s", most)
		}
		return nil
	})
}

// header asks for a block without its transactions. That there is none is an error,
// of the provider: it is asked only for blocks that it should have.
func (c *chain) header(ctx context.Context, block any) (*header, error) {
	var found *header
	if err := c.client.CallContext(ctx, &found, "eth_getBlockByNumber", block, false); err != nil {
		return nil, err
	}
	if found == nil || found.Number == nil || found.Timestamp == nil {
		return nil, errNoBlock
	}
	return found, nil
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
		return c.unusable(describe(err))
	}
}

// unusable is a failure for what the endpoint did.
func (c *chain) unusable(did string) error {
	return fault.Errorf(fault.Unavailable, "chain %s is unavailable: its endpoint %s", c.id, did)
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
