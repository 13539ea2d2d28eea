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
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/rs/cors"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
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
	// BodyTimeout is how long the one message of a request may take to arrive, and
	// how long a client may take nothing of an answer.
	BodyTimeout time.Duration
	// Origins are the pages that may call; see cors.Options.
	Origins []string
}

// Handler serves the methods. It is safe for concurrent use.
type Handler struct {
	deps     Deps
	http     http.Handler
	methods  map[string]http.Handler
	errors   *connect.ErrorWriter
	draining atomic.Bool
	// streams is cancelled when the drain begins.
	streams    context.Context
	endStreams context.CancelCauseFunc
}

// exposedHeaders are those that a page of another origin may read: a gRPC-Web
// answer without a message has its status in them.
var exposedHeaders = []string{
	"grpc-status", "grpc-message", "grpc-status-details-bin", "x-request-id", "connect-content-encoding", "grpc-encoding",
}

// New builds the handler.
func New(deps Deps) (*Handler, error) {
	h := &Handler{deps: deps, methods: map[string]http.Handler{}, errors: connect.NewErrorWriter(connect.WithCodec(rawCodec{}))}
	h.streams, h.endStreams = context.WithCancelCause(context.Background())
	for _, method := range deps.Methods {
		handler, err := h.handlerOf(method)
		if err != nil {
			return nil, err
		}
		h.methods[method.Name] = handler
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
	isCall := r.Method == http.MethodPost
	handler, known := h.methods[r.URL.Path]
	if !known && !isCall {
		h.pages(w, r)
		return
	}
	ctx, answered := h.deps.Context(r.Context(), r.Header)
	for name, value := range answered {
		w.Header().Set(name, value)
	}
	switch {
	case h.draining.Load():
		h.refuse(w, r, rpc.Draining())
	case !known:
		h.refuse(w, r, h.deps.Unknown(r.URL.Path))
	default:
		handler.ServeHTTP(w, r.WithContext(ctx))
	}
}

func (h *Handler) pages(w http.ResponseWriter, r *http.Request) {
	if h.deps.Pages == nil {
		http.NotFound(w, r)
		return
	}
	h.deps.Pages.ServeHTTP(w, r)
}

// refuse answers in the caller's protocol before its request is read.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	_, end := h.deps.Observer.Begin(r.Context(), rpc.UnknownMethod, "unary")
	end(err)
	// A client that is gone needs no answer.
	_ = h.errors.Write(w, r, connectError(err))
}

// handlerOf is connect's handler with our codecs, behind our limits.
func (h *Handler) handlerOf(m Method) (http.Handler, error) {
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
	options := connect.WithHandlerOptions(
		connect.WithCodec(rawCodec{}),
		connect.WithCodec(jsonCodec{name: "json", request: request, answer: answer}),
		connect.WithCodec(jsonCodec{name: "json; charset=utf-8", request: request, answer: answer}),
		connect.WithReadMaxBytes(h.deps.MaxRequestBytes),
		connect.WithCompressMinBytes(1024),
		connect.WithRecover(func(_ context.Context, _ connect.Spec, _ http.Header, p any) error {
			return connectError(rpc.Recovered(h.deps.Logger, p))
		}),
	)
	switch {
	case m.Unary != nil:
		return h.limited(m, connect.NewUnaryHandler(m.Name, h.unary(m), options)), nil
	case m.ClientStreams:
		return h.limited(m, connect.NewBidiStreamHandler(m.Name, h.bidi(m), options)), nil
	default:
		return h.limited(m, connect.NewServerStreamHandler(m.Name, h.serverStream(m), options)), nil
	}
}

// limited bounds the length and the time of the request's messages.
func (h *Handler) limited(m Method, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		contentType := r.Header.Get("Content-Type")
		if strings.HasPrefix(contentType, "application/grpc") || strings.HasPrefix(contentType, "application/connect+") {
			r.Body = &framedBody{ReadCloser: r.Body, limit: h.deps.MaxRequestBytes}
		} else {
			if r.ContentLength > int64(h.deps.MaxRequestBytes) {
				h.refuse(w, r, rpc.TooLong(int(r.ContentLength), h.deps.MaxRequestBytes))
				return
			}
			r.Body = &wholeBody{ReadCloser: r.Body, limit: h.deps.MaxRequestBytes}
		}
		control := http.NewResponseController(w)
		if !m.ClientStreams {
			// A recorder of tests has no deadline; every real connection has.
			_ = control.SetReadDeadline(time.Now().Add(h.deps.BodyTimeout))
			r = r.WithContext(context.WithValue(r.Context(), arrivedKey{}, func() { _ = control.SetReadDeadline(time.Time{}) }))
		}
		next.ServeHTTP(&patientWriter{ResponseWriter: w, control: control, patience: h.deps.BodyTimeout}, r)
	})
}

// arrivedKey is the context key of the function that lifts the deadline of the
// request: over HTTP/1.1 it would end the call when it passes.
type arrivedKey struct{}

func arrived(ctx context.Context) {
	if lift, ok := ctx.Value(arrivedKey{}).(func()); ok {
		lift()
	}
}

// patientWriter gives each write a time limit of its own: a client that takes
// nothing holds what it was sent. Between writes there is no limit.
type patientWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
}

func (w *patientWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.patience))
	n, err := w.ResponseWriter.Write(p)
	_ = w.control.SetWriteDeadline(time.Time{})
	return n, err
}

// FlushError implements what http.ResponseController looks for.
func (w *patientWriter) FlushError() error {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.patience))
	err := w.control.Flush()
	_ = w.control.SetWriteDeadline(time.Time{})
	return err
}

// Flush is for connect, which asks for http.Flusher.
func (w *patientWriter) Flush() { _ = w.FlushError() }

// Unwrap lets http.ResponseController reach the connection.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (h *Handler) unary(m Method) func(context.Context, *connect.Request[rpc.Frame]) (*connect.Response[rpc.Frame], error) {
	return func(ctx context.Context, request *connect.Request[rpc.Frame]) (*connect.Response[rpc.Frame], error) {
		arrived(ctx)
		ctx, end := h.deps.Observer.Begin(ctx, m.Name, "unary")
		answer, err := m.Unary(ctx, request.Msg)
		end(err)
		if err != nil {
			return nil, connectError(err)
		}
		return connect.NewResponse(answer), nil
	}
}

func (h *Handler) serverStream(m Method) func(context.Context, *connect.Request[rpc.Frame], *connect.ServerStream[rpc.Frame]) error {
	return func(ctx context.Context, request *connect.Request[rpc.Frame], stream *connect.ServerStream[rpc.Frame]) error {
		arrived(ctx)
		return h.stream(ctx, m, "server_stream", &oneMessageClient{message: request.Msg, send: stream.Send})
	}
}

func (h *Handler) bidi(m Method) func(context.Context, *connect.BidiStream[rpc.Frame, rpc.Frame]) error {
	return func(ctx context.Context, stream *connect.BidiStream[rpc.Frame, rpc.Frame]) error {
		return h.stream(ctx, m, "bidi_stream", bidiClient{stream})
	}
}

func (h *Handler) stream(ctx context.Context, m Method, kind string, client forward.Client) error {
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

// oneMessageClient is the client of a server stream.
type oneMessageClient struct {
	message *rpc.Frame
	send    func(*rpc.Frame) error
}

func (c *oneMessageClient) Recv() (*rpc.Frame, error) {
	if c.message == nil {
		return nil, io.EOF
	}
	message := c.message
	c.message = nil
	return message, nil
}

func (c *oneMessageClient) Send(frame *rpc.Frame) error { return c.send(frame) }

// bidiClient is the client of a bidirectional stream.
type bidiClient struct {
	stream *connect.BidiStream[rpc.Frame, rpc.Frame]
}

// refusals are what connect, our codecs and our limits say of a message that they
// refuse. Any other error means that the client is gone.
var refusals = map[connect.Code]fault.Kind{
	connect.CodeInvalidArgument:   fault.Invalid,
	connect.CodeOutOfRange:        fault.TooLong,
	connect.CodeResourceExhausted: fault.Exhausted,
	connect.CodeUnimplemented:     fault.Unimplemented,
}

func (c bidiClient) Recv() (*rpc.Frame, error) {
	frame, err := c.stream.Receive()
	if err == nil || errors.Is(err, io.EOF) {
		return frame, err
	}
	var failure *connect.Error
	if errors.As(err, &failure) {
		if kind, refused := refusals[failure.Code()]; refused {
			return nil, fault.Wrap(kind, err, "%s", failure.Message())
		}
	}
	return nil, fault.Wrap(fault.Cancelled, err, "the client is gone")
}

func (c bidiClient) Send(frame *rpc.Frame) error { return c.stream.Send(frame) }
