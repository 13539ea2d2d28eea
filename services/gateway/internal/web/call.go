package web

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
)

// call is one call on its way through connect, which gets to see no message: it would
// read one before it is counted, inflate it before it is measured, and keep an answer
// twice until the client takes it. connect reads stand-ins from the call's Read, and
// answerWriter writes the answer in the place of another.
type call struct {
	handler *Handler
	method  *served
	client  *caller.Caller
	ctx     context.Context //nolint:containedctx // lives as long as the call
	control *http.ResponseController
	source  io.ReadCloser
	body    rpc.Body
	// refused lets the connection end with the answer, without the rest of a request
	// that is refused.
	refused func()
	framed  bool // each message has a prefix
	json    bool

	// Reading is up to one goroutine at a time, answering to another.
	received *rpc.Frame // the message that connect has read the stand-in of
	messages int
	refusal  error // of the request
	observed bool  // by the method
	answer   *rpc.Frame
}

// compressionHeader names how messages are compressed.
func compressionHeader(contentType string, framed bool) string {
	switch {
	case !framed:
		return "Content-Encoding"
	case strings.HasPrefix(contentType, "application/connect+"):
		return "Connect-Content-Encoding"
	default:
		return "Grpc-Encoding"
	}
}

// acceptHeaders ask for compressed answers. Most of an answer is ciphertext, which
// compression does not shorten, and it would be held a second time for that.
var acceptHeaders = []string{"Accept-Encoding", "Connect-Accept-Encoding", "Grpc-Accept-Encoding"}

// newCall takes over the body of the request.
func (h *Handler) newCall(w http.ResponseWriter, r *http.Request, m *served) *call {
	contentType := strings.ToLower(r.Header.Get("Content-Type"))
	c := &call{
		handler: h, method: m, ctx: r.Context(), client: h.deps.Budgets.From(r.Context()),
		control: http.NewResponseController(w), source: r.Body, refused: func() { endsUnread(w, r) },
		framed: strings.HasPrefix(contentType, "application/grpc") || strings.HasPrefix(contentType, "application/connect+"),
	}
	mediaType, _, _ := strings.Cut(contentType, ";")
	c.json = strings.HasSuffix(strings.TrimSpace(mediaType), "json")
	name := compressionHeader(contentType, c.framed)
	c.body = rpc.Body{Arrival: &h.arrival, Source: arrivingBody{c}, Compression: r.Header.Get(name), Limit: h.deps.MaxRequestBytes}
	if c.body.Compression == "identity" {
		c.body.Compression = ""
	}
	r.Header.Del(name)
	for _, name := range acceptHeaders {
		r.Header.Del(name)
	}
	r.Body = c
	if r.ProtoMajor == 1 {
		_ = c.control.SetWriteDeadline(time.Time{}) // of the call before
	}
	if !m.ClientStreams {
		c.expectWithin(h.deps.BodyTimeout)
	}
	return c
}

// arrivingBody is the request as it comes, with errors that say what happened.
type arrivingBody struct{ call *call }

func (b arrivingBody) Read(p []byte) (int, error) {
	n, err := b.call.source.Read(p)
	switch {
	case err == nil || err == io.EOF || fault.KindOf(err) != fault.Broken:
		return n, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, fault.Wrap(fault.Late, err, "the request did not arrive within %v, expected all of it", b.call.handler.deps.BodyTimeout)
	default:
		return n, fault.Wrap(fault.Cancelled, err, "the client is gone")
	}
}

// Read is what connect has of the request: for each message one without a byte.
func (c *call) Read(p []byte) (int, error) {
	err := c.refusal
	if err == nil {
		err = c.receive()
	}
	if errors.Is(err, io.EOF) {
		return 0, io.EOF
	}
	if err != nil {
		c.refusal = err
		if !c.method.ClientStreams { // whose answer may have begun
			c.refused()
		}
		return 0, connectError(err)
	}
	if !c.framed {
		return 0, io.EOF
	}
	return copy(p, make([]byte, prefixBytes)), nil // connect asks for a whole prefix
}

// prefixBytes is the length of the frame header that gRPC, gRPC-Web and Connect
// streams share: a flag byte and the length of the message.
const prefixBytes = 5

// receive reads the next message. Its error is io.EOF after the last one.
func (c *call) receive() error {
	many := c.method.ClientStreams
	if !c.framed {
		if c.messages > 0 {
			return io.EOF
		}
		return c.keep(func(frame *rpc.Frame) error { return c.body.Whole(c.ctx, frame) })
	}
	compressed, err := c.body.Begin()
	switch {
	case errors.Is(err, io.EOF) && c.messages == 0 && !many:
		return fault.Invalidf(fault.NoReason, "the call carried no request message, expected one")
	case err != nil:
		return err
	case c.messages > 0 && !many:
		return fault.Invalidf(fault.NoReason, "the call carried more than one request message, expected one")
	}
	if many { // the time limit of others began with the call
		c.expectWithin(c.handler.deps.BodyTimeout)
		defer c.arrived()
	}
	return c.keep(func(frame *rpc.Frame) error { return c.body.Rest(c.ctx, frame, compressed) })
}

func (c *call) keep(read func(frame *rpc.Frame) error) error {
	frame := &rpc.Frame{}
	err := read(frame)
	if err == nil && c.json {
		frame, err = c.method.fromJSON(c.ctx, &c.handler.arrival, frame)
	}
	if err != nil {
		return err
	}
	c.messages++
	c.received = frame
	return nil
}

// expectWithin gives the rest of the request, or of a message, a time limit.
func (c *call) expectWithin(limit time.Duration) {
	// A recorder of tests has no deadline; every real connection has.
	_ = c.control.SetReadDeadline(time.Now().Add(limit))
}

// arrived lifts the time limit: over HTTP/1.1 it would end the call when it passes.
func (c *call) arrived() { _ = c.control.SetReadDeadline(time.Time{}) }

// take is the message in the place of which connect has a stand-in.
func (c *call) take() *rpc.Frame {
	frame := c.received
	c.received = nil
	return frame
}

// Close implements io.Closer for connect.
func (c *call) Close() error { return c.source.Close() }

// end counts a call that never reached its method, and frees what nobody took.
func (c *call) end() {
	if !c.observed {
		err := c.refusal
		if err == nil {
			err = fault.Errorf(fault.Invalid, "the request is in no protocol that the method can be called with")
		}
		c.handler.count(c.ctx, c.method.Name, c.method.kind(), err)
	}
	if frame := c.take(); frame != nil {
		frame.Free()
	}
	if c.answer != nil {
		c.answer.Free()
	}
}

// answerWith returns the stand-in of an answer, which is written in its place.
func (c *call) answerWith(ctx context.Context, frame *rpc.Frame) (*rpc.Frame, error) {
	if c.json {
		patient, cancel := context.WithTimeout(ctx, c.handler.deps.Patience)
		defer cancel()
		text, err := c.method.toJSON(patient, c.client, frame)
		if err != nil {
			return nil, err
		}
		frame = text
	}
	c.answer = frame
	if c.framed {
		return &rpc.Frame{}, nil
	}
	return rpc.FrameOf(standIn), nil
}

// standIn is a message that is not empty: connect writes nothing for one that is.
var standIn = []byte{0}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}
