// Package web serves the API to everything that does not speak native gRPC on a
// connection of its own: gRPC-Web as bytes and as text, Connect with JSON and
// protobuf, and native gRPC where a proxy mixes it with those. Protobuf messages
// pass as raw bytes; only JSON is transcoded.
package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/rs/cors"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/forward"
)

// Method is one RPC. Exactly one of Unary and Stream is set; the context of
// their calls is what Deps.Context returned.
type Method struct {
	// Name is the full name, such as /package.Service/Method.
	Name          string
	Unary         func(ctx context.Context, request *rpc.Frame) (*rpc.Frame, error)
	Stream        func(ctx context.Context, client forward.Client) error
	ClientStreams bool
}

// Deps is what the handler needs.
type Deps struct {
	Methods  []Method
	Observer *rpc.Observer
	Logger   *slog.Logger
	// Context returns the context of a call and the headers of its answer.
	Context func(ctx context.Context, request http.Header) (context.Context, map[string]string)
	// Unknown is the error of a method that does not exist.
	Unknown func(fullMethod string) error
	// Pages answers what is no call; nil is 404.
	Pages http.Handler
	// MaxRequestBytes is the longest message on the wire.
	MaxRequestBytes int
	// BodyTimeout is how long a message may take to arrive, the one message of a call
	// from its headers on, and how long a client may take nothing of an answer.
	BodyTimeout time.Duration
	// Budgets are what messages and answers are counted in, and Patience is how long
	// one waits for room there.
	Budgets  caller.Budgets
	Patience time.Duration
	// Calls bounds the calls in progress, with those of other protocols.
	Calls *caller.Calls
	// Origins are the pages that may call; see cors.Options.
	Origins []string
}

// Handler serves the methods. It is safe for concurrent use.
type Handler struct {
	deps     Deps
	http     http.Handler
	methods  map[string]*served
	arrival  rpc.Arrival
	errors   *connect.ErrorWriter
	draining atomic.Bool
	// streams is cancelled when the drain begins.
	streams    context.Context
	endStreams context.CancelCauseFunc
}

// served is a method with what serves it.
type served struct {
	Method
	jsonForm

	connect http.Handler
}

// kind is the label of the method's calls.
func (m *served) kind() string {
	switch {
	case m.Unary != nil:
		return "unary"
	case m.ClientStreams:
		return "bidi_stream"
	default:
		return "server_stream"
	}
}

// exposedHeaders are those that a page of another origin may read: a gRPC-Web
// answer without a message has its status in them.
var exposedHeaders = []string{
	"grpc-status", "grpc-message", "grpc-status-details-bin", "x-request-id", "connect-content-encoding", "grpc-encoding",
}

// New builds the handler.
func New(deps Deps) (*Handler, error) {
	h := &Handler{deps: deps, methods: map[string]*served{}, errors: connect.NewErrorWriter(connect.WithCodec(standInCodec{"proto"}))}
	h.arrival = rpc.Arrival{
		Timeout: deps.BodyTimeout, Patience: deps.Patience,
		Holder: func(ctx context.Context) *budget.Holder { return deps.Budgets.From(ctx).Bodies },
	}
	h.streams, h.endStreams = context.WithCancelCause(context.Background())
	for _, method := range deps.Methods {
		served, err := h.served(method)
		if err != nil {
			return nil, err
		}
		h.methods[method.Name] = served
	}
	h.http = cors.New(cors.Options{
		AllowedOrigins: deps.Origins,
		AllowedMethods: []string{http.MethodGet, http.MethodPost},
		AllowedHeaders: []string{"*"}, // whatever headers clients invent, none grants anything here
		ExposedHeaders: exposedHeaders,
		MaxAge:         int((2 * time.Hour).Seconds()),
	}).Handler(withText(http.HandlerFunc(h.serve)))
	return h, nil
}

// Drain ends the open streams and refuses new calls, both with UNAVAILABLE.
func (h *Handler) Drain() {
	h.draining.Store(true)
	h.endStreams(rpc.Draining())
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.http.ServeHTTP(w, r) }

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) {
	method, known := h.methods[r.URL.Path]
	if !known && r.Method != http.MethodPost {
		h.pages(w, r)
		return
	}
	ctx, answered := h.deps.Context(r.Context(), r.Header)
	for name, value := range answered {
		w.Header().Set(name, value)
	}
	switch err := checkHeaders(r.Header); {
	case !known:
		h.refuse(w, r, rpc.UnknownMethod, "unary", h.deps.Unknown(r.URL.Path))
	case h.draining.Load():
		h.refuse(w, r, method.Name, method.kind(), rpc.Draining())
	case err != nil:
		h.refuse(w, r, method.Name, method.kind(), err)
	default:
		h.call(w, r.WithContext(ctx), method)
	}
}

// call hands a call to connect, with stand-ins for its messages, unless there are too
// many.
func (h *Handler) call(w http.ResponseWriter, r *http.Request, method *served) {
	client, kind := h.deps.Budgets.From(r.Context()), caller.KindOf(method.Name, method.Stream != nil)
	if err := h.deps.Calls.Begin(client, kind); err != nil {
		h.refuse(w, r, method.Name, method.kind(), err)
		return
	}
	defer h.deps.Calls.End(client, kind)
	call := h.newCall(w, r, method)
	defer call.end()
	method.connect.ServeHTTP(&answerWriter{ResponseWriter: w, call: call}, r.WithContext(context.WithValue(r.Context(), callKey{}, call)))
}

// limitWrites is for answers that are no call's.
func (h *Handler) limitWrites(w http.ResponseWriter) {
	// A recorder of tests has no deadline; every real connection has.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.deps.BodyTimeout))
}

func (h *Handler) pages(w http.ResponseWriter, r *http.Request) {
	h.limitWrites(w)
	if h.deps.Pages == nil {
		http.NotFound(w, r)
		return
	}
	h.deps.Pages.ServeHTTP(w, r)
}

// refuse answers in the caller's protocol before its request is read.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, method, kind string, err error) {
	h.limitWrites(w)
	endsUnread(w, r)
	h.count(r.Context(), method, kind, err)
	// A client that is gone needs no answer.
	_ = h.errors.Write(w, r, connectError(err))
}

// endsUnread is for an answer to a request of which the rest is not wanted: over
// HTTP/1.1 net/http reads it before it answers, unless the connection is to end, and
// some of it before it ends.
func endsUnread(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout))
	}
}

// restTimeout is how long the rest of a refused request may take: a client that is
// still sending when the connection ends may not read the answer.
const restTimeout = time.Second

// count counts a call that its method has not seen.
func (h *Handler) count(ctx context.Context, method, kind string, err error) {
	_, end := h.deps.Observer.Begin(ctx, method, kind)
	end(err)
}

// Headers of calls, about which connect's own errors would quote the client.
var (
	grpcTimeout    = regexp.MustCompile(`^[0-9]{1,8}[HMSmun]$`)
	connectTimeout = regexp.MustCompile(`^[0-9]{1,10}$`)
	connectVersion = regexp.MustCompile(`^1$`)
)

func checkHeaders(header http.Header) error {
	for _, known := range []struct {
		name, expected string
		form           *regexp.Regexp
	}{
		{"Grpc-Timeout", "up to eight digits and a unit", grpcTimeout},
		{"Connect-Timeout-Ms", "up to ten digits", connectTimeout},
		{"Connect-Protocol-Version", "1", connectVersion},
	} {
		if value := header.Get(known.name); value != "" && !known.form.MatchString(value) {
			return fault.Errorf(fault.Invalid, "the header %s is malformed, expected %s", strings.ToLower(known.name), known.expected)
		}
	}
	return nil
}

// served is connect's handler with our codecs, behind our limits.
func (h *Handler) served(m Method) (*served, error) {
	description, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(m.Name, "/"), "/", ".")))
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", m.Name, err)
	}
	method, ok := description.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is not a method", m.Name)
	}
	request, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return nil, fmt.Errorf("find the request of %s: %w", m.Name, err)
	}
	answer, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if err != nil {
		return nil, fmt.Errorf("find the response of %s: %w", m.Name, err)
	}
	return &served{Method: m, jsonForm: jsonForm{request: request, answer: answer}, connect: h.connectOf(m)}, nil
}

func (h *Handler) connectOf(m Method) http.Handler {
	options := connect.WithHandlerOptions(
		connect.WithCodec(standInCodec{"proto"}),
		connect.WithCodec(standInCodec{"json"}),
		connect.WithCodec(standInCodec{"json; charset=utf-8"}),
		connect.WithRecover(func(_ context.Context, _ connect.Spec, _ http.Header, p any) error {
			return connectError(rpc.Recovered(h.deps.Logger, p))
		}),
	)
	switch {
	case m.Unary != nil:
		return connect.NewUnaryHandler(m.Name, h.unary(m), options)
	case m.ClientStreams:
		return connect.NewBidiStreamHandler(m.Name, h.bidi(m), options)
	default:
		return connect.NewServerStreamHandler(m.Name, h.serverStream(m), options)
	}
}

func (h *Handler) unary(m Method) func(context.Context, *connect.Request[rpc.Frame]) (*connect.Response[rpc.Frame], error) {
	return func(ctx context.Context, _ *connect.Request[rpc.Frame]) (*connect.Response[rpc.Frame], error) {
		call := callOf(ctx)
		call.arrived()
		call.observed = true
		ctx, end := h.deps.Observer.Begin(ctx, m.Name, "unary")
		answer, err := m.Unary(ctx, call.take())
		if err == nil {
			answer, err = call.answerWith(ctx, answer)
		}
		end(err)
		if err != nil {
			return nil, connectError(err)
		}
		return connect.NewResponse(answer), nil
	}
}

func (h *Handler) serverStream(m Method) func(context.Context, *connect.Request[rpc.Frame], *connect.ServerStream[rpc.Frame]) error {
	return func(ctx context.Context, _ *connect.Request[rpc.Frame], stream *connect.ServerStream[rpc.Frame]) error {
		call := callOf(ctx)
		call.arrived()
		return h.stream(ctx, m, "server_stream", &oneMessageClient{message: call.take(), sender: sender{ctx, call, stream.Send}})
	}
}

func (h *Handler) bidi(m Method) func(context.Context, *connect.BidiStream[rpc.Frame, rpc.Frame]) error {
	return func(ctx context.Context, stream *connect.BidiStream[rpc.Frame, rpc.Frame]) error {
		return h.stream(ctx, m, "bidi_stream", bidiClient{sender{ctx, callOf(ctx), stream.Send}, stream})
	}
}

func (h *Handler) stream(ctx context.Context, m Method, kind string, client forward.Client) error {
	callOf(ctx).observed = true
	ctx, end := h.deps.Observer.Begin(ctx, m.Name, kind)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.streams, func() { cancel(rpc.Draining()) })() //nolint:contextcheck // the drain ends all calls, whatever their own context
	err := m.Stream(ctx, client)
	if errors.Is(context.Cause(ctx), rpc.Draining()) {
		err = rpc.Draining()
	}
	end(err)
	if err != nil {
		return connectError(err)
	}
	return nil
}

// sender sends the messages of a stream.
type sender struct {
	ctx  context.Context //nolint:containedctx // of the stream
	call *call
	send func(*rpc.Frame) error
}

func (s sender) Send(frame *rpc.Frame) error {
	standIn, err := s.call.answerWith(s.ctx, frame)
	if err != nil {
		return err
	}
	if err := s.send(standIn); err != nil {
		return fault.Wrap(fault.Cancelled, err, "the client is gone")
	}
	return nil
}

// oneMessageClient is the client of a server stream.
type oneMessageClient struct {
	sender

	message *rpc.Frame
}

func (c *oneMessageClient) Recv() (*rpc.Frame, error) {
	if c.message == nil {
		return nil, io.EOF
	}
	message := c.message
	c.message = nil
	return message, nil
}

// bidiClient is the client of a bidirectional stream.
type bidiClient struct {
	sender

	stream *connect.BidiStream[rpc.Frame, rpc.Frame]
}

func (c bidiClient) Recv() (*rpc.Frame, error) {
	_, err := c.stream.Receive()
	switch {
	case err == nil:
		return c.call.take(), nil
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case c.call.refusal != nil:
		return nil, c.call.refusal
	default:
		return nil, fault.Wrap(fault.Cancelled, err, "the client is gone")
	}
}
