package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// Config bounds a role's server.
type Config struct {
	// DrainTimeout is how long unary calls may go on after a shutdown began.
	DrainTimeout time.Duration `env:"DRAIN_TIMEOUT" envDefault:"10s"`
	// StopTimeout bounds what remains to be done after the drain.
	StopTimeout time.Duration `env:"STOP_TIMEOUT" envDefault:"5s"`
	// AnswerTimeout is how long the answer of a role's unary call may stand still
	// before its call is ended, or a connection that takes no answers is closed. A
	// reader also waits as long for a request to arrive, and for room.
	AnswerTimeout time.Duration `env:"ANSWER_TIMEOUT" envDefault:"60s"`
}

// Validate names each variable that is out of range.
func (c Config) Validate() error {
	var errs []error
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("XMTP_DRAIN_TIMEOUT is %v, expected at least 0s", c.DrainTimeout))
	}
	if c.StopTimeout <= 0 {
		errs = append(errs, fmt.Errorf("XMTP_STOP_TIMEOUT is %v, expected more than 0s", c.StopTimeout))
	}
	if c.AnswerTimeout <= 0 {
		errs = append(errs, fmt.Errorf("XMTP_ANSWER_TIMEOUT is %v, expected more than 0s", c.AnswerTimeout))
	}
	return errors.Join(errs...)
}

// Method is one RPC of a role. Exactly one of Unary, Stream and Forward is
// set. The handlers see raw bytes, and answer with errors that Status understands.
type Method struct {
	Name   string
	Unary  func(ctx context.Context, request []byte) (*Frame, error)
	Stream func(stream grpc.ServerStream) error
	// Forward is a Unary that takes the frame as it was received: it must be
	// taken, sent or freed. It replaces Unary.
	Forward func(ctx context.Context, request *Frame) (*Frame, error)
	// Answered, which may be nil, runs after each Unary or Forward, once its answer
	// is on its way: what its caller need not wait for.
	Answered func()
	// ClientStreams is for a bidirectional Stream.
	ClientStreams bool
}

// Service is a set of methods under a full service name.
type Service struct {
	Name    string
	Methods []Method
}

// Limits of every role's server, and of the gateway's connections to it.
const (
	// maxHeaderBytes leaves room for any header that the public port accepts.
	maxHeaderBytes = 64 << 10
	// keepaliveTime is how long a connection to a role is quiet before its peer
	// is asked whether it is still there.
	keepaliveTime = 10 * time.Second
	// How much a peer may send ahead of what is read, on one stream and on a whole
	// connection. A message that is being read may be longer. The windows are fixed
	// because grpc-go, when it looks for the best ones itself, sends a ping for every
	// message it receives: one more write, read and wake-up on either side of each hop.
	streamWindow     = 256 << 10
	connectionWindow = 4 << 20
)

// Server serves a role's methods with health and a bounded shutdown.
type Server struct {
	config   Config
	grpc     *grpc.Server
	health   *health.Server
	names    []string
	draining atomic.Bool
	maxBytes int
	public   bool
	ready    func(int64) // reports whether it serves
	metrics  *telemetry.Metrics
	// responses counts the answers of a role; nil when nobody does.
	responses *budget.Budget
	// streams is cancelled when the drain begins: long streams end at once.
	streams    context.Context
	endStreams context.CancelCauseFunc
}

// ServerDeps is what a server needs beside its configuration.
type ServerDeps struct {
	Metrics *telemetry.Metrics
	Logger  *slog.Logger
	// MaxRequestBytes is the longest message accepted on the wire; a longer one
	// is OUT_OF_RANGE.
	MaxRequestBytes int
	// Public is for the gateway's server, whose callers are clients; nil for roles.
	Public *Public
	// Responses, which may be nil, counts the bytes of unary answers from the end of
	// their handler until they have left, and those of an Answer from before.
	Responses *budget.Budget
	// Arrival guards the messages that a role receives; nil for one that counts them
	// itself.
	Arrival *Arrival
	// Unknown answers the calls of methods that are not registered; without it
	// they get grpc-go's UNIMPLEMENTED. Its error becomes the status.
	Unknown func(fullMethod string) error
	// Options are further server options, such as a stats handler.
	Options []grpc.ServerOption
}

// Public is what a server needs whose callers may be anybody.
type Public struct {
	Arrival Arrival
	// Cancelled is told of each call that its client gave up.
	Cancelled func(ctx context.Context)
}

func (p *Public) cancelled(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	err := handle(server, stream)
	if errors.Is(stream.Context().Err(), context.Canceled) {
		p.Cancelled(stream.Context())
	}
	return err
}

// KeptHandlers is the option of a server of short calls: it keeps goroutines for
// them, whose stacks are already as deep as a call needs. More calls at a time, or
// beside streams, get goroutines of their own.
func KeptHandlers() grpc.ServerOption { return grpc.NumStreamWorkers(128) }

var errDraining = fault.Errorf(fault.Unavailable, "the server is shutting down")

// NewServer prepares a server; nothing listens yet. Health is NOT_SERVING until
// SetServing.
func NewServer(config Config, deps ServerDeps, services ...Service) *Server {
	config.AnswerTimeout = cmp.Or(config.AnswerTimeout, time.Minute) // of one that was not loaded
	s := &Server{config: config, health: health.NewServer(), maxBytes: deps.MaxRequestBytes, public: deps.Public != nil, metrics: deps.Metrics, responses: deps.Responses}
	s.ready = func(is int64) { deps.Metrics.Ready.Record(context.Background(), is) }
	s.streams, s.endStreams = context.WithCancelCause(context.Background())
	chain := Chain(deps.Logger, deps.Metrics)
	switch {
	case deps.Public != nil:
		chain = publicChain(deps)
	case deps.Arrival != nil:
		chain = append(chain, deps.Arrival.intercept(deps.MaxRequestBytes))
	}
	options := append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec{}),
		grpc.MaxRecvMsgSize(receiveCeiling(deps.MaxRequestBytes)),
		grpc.MaxSendMsgSize(1 << 30), // a role's own response check comes first
		grpc.MaxHeaderListSize(maxHeaderBytes),
		experimental.BufferPool(&used),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.ChainStreamInterceptor(chain...),
		grpc.WaitForHandlers(true),
		// The gateway asks often, so that a broken path is found in seconds.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * keepaliveTime, Timeout: keepaliveTime}),
	}, deps.Options...)
	if deps.Unknown != nil {
		options = append(options, grpc.UnknownServiceHandler(unknown(deps.Unknown)))
	}
	s.grpc = grpc.NewServer(options...)
	s.names = []string{""}
	for _, service := range services {
		s.register(service, chain)
		s.names = append(s.names, service.Name)
	}
	if deps.Public != nil {
		s.register(publicHealth(healthServer{s.health, s.streams}), chain)
	} else {
		healthv1.RegisterHealthServer(s.grpc, healthServer{s.health, s.streams})
	}
	s.SetServing(false)
	return s
}

// receiveCeiling is what grpc-go may receive. grpc-go puts its own status on the
// wire before the handler sees the error, and for a long message that is the
// wrong one; so it takes more than the limit, and the length is checked here.
func receiveCeiling(maxRequestBytes int) int { return 2*maxRequestBytes + 1<<20 }

// unknown answers after the fact: nothing is read of the request.
func unknown(answer func(string) error) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		name, _ := grpc.Method(stream.Context())
		return answer(name)
	}
}

// register describes the service to grpc-go. Unary methods are streams there,
// too, since only the handler of a stream receives its message itself; but
// grpc-go leaves its stream interceptors out for them, so they get the chain here.
func (s *Server) register(service Service, chain []grpc.StreamServerInterceptor) {
	desc := grpc.ServiceDesc{ServiceName: service.Name, HandlerType: (*any)(nil)}
	for _, method := range service.Methods {
		var handler grpc.StreamHandler
		switch {
		case method.Stream != nil:
			handler = s.stream(method.Stream)
		case method.Forward != nil:
			handler = s.unary(method.Forward, method.Answered)
		default:
			handler = s.unary(func(ctx context.Context, request *Frame) (*Frame, error) {
				defer request.Release() // what is held for the bytes is held as long as they are in use
				return method.Unary(ctx, request.takeBytes())
			}, method.Answered)
		}
		if method.Stream == nil {
			handler = chained(chain, &grpc.StreamServerInfo{FullMethod: "/" + service.Name + "/" + method.Name}, handler)
		}
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName:    method.Name,
			Handler:       handler,
			ServerStreams: method.Stream != nil,
			ClientStreams: method.ClientStreams,
		})
	}
	s.grpc.RegisterService(&desc, s)
}

// chained is the handler inside the interceptors.
func chained(chain []grpc.StreamServerInterceptor, info *grpc.StreamServerInfo, handler grpc.StreamHandler) grpc.StreamHandler {
	for _, interceptor := range slices.Backward(chain) {
		inner := handler
		handler = func(server any, stream grpc.ServerStream) error { return interceptor(server, stream, info, inner) }
	}
	return handler
}

func (s *Server) unary(handle func(context.Context, *Frame) (*Frame, error), answered func()) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		sent := once(answered)
		defer sent()
		if s.draining.Load() {
			return errDraining
		}
		request := &Frame{}
		if err := s.receive(stream, request); err != nil {
			return err
		}
		response, err := handle(stream.Context(), request)
		if err != nil {
			return err
		}
		if s.public { // whose answers are counted above
			return stream.SendMsg(response)
		}
		announce(stream, response)
		return s.send(stream, response, sent)
	}
}

// once runs do, which may be nil, the first time only. It is for one goroutine.
func once(do func()) func() {
	return func() {
		if do != nil {
			do()
			do = nil
		}
	}
}

// AnswerBytes is the header by which a role tells the gateway how long a long answer
// is, before the answer itself. The gateway never forwards it.
const AnswerBytes = "xmtp-answer-bytes"

// shortAnswer is the longest answer that is not announced.
const shortAnswer = 64 << 10

func announce(stream grpc.ServerStream, answer *Frame) {
	length := answer.Data.Len()
	if length <= shortAnswer {
		return
	}
	// It fails only when the stream is over.
	_ = stream.SetHeader(metadata.Pairs(AnswerBytes, strconv.Itoa(length)))
}

// receive takes one message that is not longer than the limit.
func (s *Server) receive(stream grpc.ServerStream, m any) error {
	if err := stream.RecvMsg(m); err != nil {
		return ReceiveError(err)
	}
	if frame, ok := m.(*Frame); ok && frame.Data.Len() > s.maxBytes {
		length := frame.Data.Len()
		frame.Free()
		return TooLong(length, s.maxBytes)
	}
	return nil
}

// TooLong is the fault of a request that is longer on the wire than the limit.
func TooLong(length, limit int) error {
	return fault.Errorf(fault.TooLong, "the request is %d bytes long, expected at most %d", length, limit)
}

func (s *Server) stream(handle func(grpc.ServerStream) error) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		if s.draining.Load() {
			return errDraining
		}
		ctx, cancel := context.WithCancelCause(stream.Context())
		defer cancel(nil)
		defer context.AfterFunc(s.streams, func() { cancel(context.Cause(s.streams)) })()
		err := handle(&roleStream{ServerStream: stream, server: s, ctx: ctx})
		if errors.Is(context.Cause(ctx), errDraining) {
			return errDraining
		}
		return err
	}
}

// roleStream is a stream whose context also ends when the server drains, and
// whose messages are bounded.
type roleStream struct {
	grpc.ServerStream
	server *Server
	ctx    context.Context
}

func (s *roleStream) Context() context.Context { return s.ctx }

func (s *roleStream) RecvMsg(m any) error { return s.server.receive(s.ServerStream, m) }

// ReceiveError turns grpc-go's refusal of a long message into the one of API-130:
// OUT_OF_RANGE for the length on the wire, RESOURCE_EXHAUSTED for what a
// compressed message inflates to. Other errors pass.
func ReceiveError(err error) error {
	text := Status(err).Message()
	switch {
	case strings.Contains(text, "received message larger than max"):
		return fault.Wrap(fault.TooLong, err, "the message is longer than the server's limit for a request")
	case strings.Contains(text, "message after decompression larger than max"):
		return fault.Wrap(fault.Exhausted, err, "the message is longer after decompression than the server's limit for a request")
	}
	return err
}

// SetServing sets the health of every service of this role.
func (s *Server) SetServing(serving bool) {
	state, ready := healthv1.HealthCheckResponse_NOT_SERVING, int64(0)
	if serving && !s.draining.Load() {
		state, ready = healthv1.HealthCheckResponse_SERVING, 1
	}
	s.ready(ready)
	for _, name := range s.names {
		s.health.SetServingStatus(name, state)
	}
}

// Draining is the fault of a call that meets a server which shuts down.
func Draining() error { return errDraining }

// Health is the standard health service of this server, for gateways that serve
// it in other protocols, too.
func (s *Server) Health() healthv1.HealthServer { return healthServer{s.health, s.streams} }

// RegisterOn lets f add services that grpc-go itself knows how to serve, such
// as reflection. It must be called before Serve.
func (s *Server) RegisterOn(f func(*grpc.Server)) { f(s.grpc) }

// Serve accepts calls until ctx ends, then drains: health NOT_SERVING, new
// calls and open streams UNAVAILABLE at once, unary calls within DrainTimeout.
// It returns when no handler runs any more, or with an error when one is still
// running StopTimeout after that.
func (s *Server) Serve(ctx context.Context, accepted net.Listener) error {
	served := make(chan error, 1)
	if !s.public {
		accepted = owingListener{accepted, s}
	}
	go func() { served <- s.grpc.Serve(accepted) }()
	select {
	case err := <-served:
		s.drain()
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	if !s.drain() {
		return fmt.Errorf("handlers are still running %v after the drain time of %v", s.config.StopTimeout, s.config.DrainTimeout)
	}
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// drain reports whether all handlers have returned.
func (s *Server) drain() bool {
	s.draining.Store(true)
	s.ready(0)
	s.health.Shutdown()
	s.endStreams(errDraining)
	drained := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(drained)
	}()
	if within(drained, s.config.DrainTimeout) {
		return true
	}
	stopped := make(chan struct{})
	go func() { // Stop also waits for the handlers
		s.grpc.Stop()
		<-drained
		close(stopped)
	}()
	return within(stopped, s.config.StopTimeout)
}

func within(done <-chan struct{}, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
