// Package fuzzrpc sends hostile requests to every public RPC through the gateway:
// whatever comes, the answer has a code that such a request may have, and the
// backend works afterwards.
package fuzzrpc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/cmd/stack"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// backend is the roles of this process. Each fuzz worker has its own, so that
// their coverage guides the search; the servers belong to the first process, for
// a server that a worker starts would keep the worker's pipes open.
var backend struct {
	once sync.Once
	run  *stack.Stack
	conn *grpc.ClientConn
	err  error
}

// Variables by which workers find the servers.
const primaryVariable, replicaVariable = "XMTP_FUZZ_PRIMARY_URL", "XMTP_FUZZ_REPLICA_URL"

func TestMain(m *testing.M) {
	code, err := withServers(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withServers(run func() int) (code int, err error) {
	dir, err := os.MkdirTemp("", "xmtp-fuzz-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		return 1, err
	}
	options := stack.Options{Dir: dir, Settings: map[string]string{"fsync": "off", "max_connections": "300"}}
	if os.Getenv(primaryVariable) == "" {
		servers, err := stack.Start(context.Background(), options)
		if err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, servers.Stop()) }()
		if err := errors.Join(os.Setenv(primaryVariable, servers.Endpoints.PrimaryURL), os.Setenv(replicaVariable, servers.Endpoints.ReplicaURL)); err != nil {
			return 1, err
		}
	}
	code = run()
	if backend.conn != nil {
		err = backend.conn.Close()
	}
	if backend.run != nil {
		err = errors.Join(err, backend.run.Stop())
	}
	return code, err
}

func connect(t testing.TB) *grpc.ClientConn {
	t.Helper()
	backend.once.Do(func() {
		dir, err := os.MkdirTemp("", "xmtp-fuzz-")
		if err != nil {
			backend.err = err
			return
		}
		defer func() { _ = os.RemoveAll(dir) }() // nothing is in it but the endpoints
		backend.run, backend.err = stack.Start(context.Background(), stack.Options{Dir: dir, Environment: map[string]string{
			"XMTP_PRIMARY_URL": os.Getenv(primaryVariable), "XMTP_REPLICA_URL": os.Getenv(replicaVariable)}})
		if backend.err != nil {
			return
		}
		backend.conn, backend.err = grpc.NewClient(backend.run.Endpoints.Gateway, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rpc.Codec{}), grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	})
	require.NoError(t, backend.err)
	return backend.conn
}

// method is a public RPC and the codes that a request may have that arrives whole
// on a healthy backend (docs/design.md#status-codes).
type method struct {
	name            string
	stream, clients bool
	codes           []codes.Code
}

var methods = []method{
	{name: backendv1.PublishService_Publish_FullMethodName, codes: []codes.Code{codes.OK, codes.InvalidArgument, codes.OutOfRange, codes.Aborted}},
	{name: backendv1.QueryService_Query_FullMethodName, codes: []codes.Code{codes.OK, codes.InvalidArgument, codes.OutOfRange}},
	{name: backendv1.QueryService_QueryNewest_FullMethodName, codes: []codes.Code{codes.OK, codes.InvalidArgument, codes.OutOfRange}},
	{name: backendv1.IdentityService_GetInboxIds_FullMethodName, codes: []codes.Code{codes.OK, codes.InvalidArgument, codes.OutOfRange}},
	// There is no chain here: what would need one is UNAVAILABLE.
	{name: backendv1.IdentityService_VerifySmartContractWalletSignatures_FullMethodName, codes: []codes.Code{codes.OK, codes.InvalidArgument, codes.Unavailable}},
	{name: backendv1.ConfigurationService_GetConfiguration_FullMethodName, codes: []codes.Code{codes.OK, codes.InvalidArgument}},
	{name: backendv1.SubscriptionService_SubscribeStatic_FullMethodName, stream: true, codes: []codes.Code{codes.OK, codes.InvalidArgument}},
	{name: backendv1.SubscriptionService_Subscribe_FullMethodName, stream: true, clients: true,
		codes: []codes.Code{codes.OK, codes.InvalidArgument, codes.ResourceExhausted}},
}

const callTimeout = 30 * time.Second

// attempt sends one request of raw bytes.
func attempt(conn *grpc.ClientConn, m method, request []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if m.stream {
		return open(ctx, conn, m, request)
	}
	var answer rpc.Frame
	defer answer.Free()
	return conn.Invoke(ctx, m.name, rpc.FrameOf(slices.Clone(request)), &answer)
}

// call sends one request and checks the kind of the answer. A machine that stands
// still for a moment is not the request's doing: what failed so is sent once more.
func call(t testing.TB, conn *grpc.ClientConn, m method, request []byte) codes.Code {
	t.Helper()
	err := attempt(conn, m, request)
	if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		err = attempt(conn, m, request)
	}
	answered := status.Convert(err)
	if !slices.Contains(m.codes, answered.Code()) {
		// An identity update may need a chain, too.
		if m.name != backendv1.PublishService_Publish_FullMethodName || answered.Code() != codes.Unavailable || !strings.Contains(answered.Message(), "chain") {
			t.Fatalf("%s answered %v to %d bytes: %x", m.name, answered, len(request), request[:min(len(request), 2000)])
		}
	}
	if !utf8.ValidString(answered.Message()) || err != nil && answered.Message() == "" {
		t.Fatalf("%s: the message of %v is %q", m.name, answered.Code(), answered.Message())
	}
	if m.name == backendv1.PublishService_Publish_FullMethodName && answered.Code() == codes.InvalidArgument {
		if details := answered.Details(); len(details) != 1 || details[0].(proto.Message).ProtoReflect().Descriptor().Name() != "PublishError" {
			t.Fatalf("a refused publish came without its PublishError: %v %v", answered, details)
		}
	}
	return answered.Code()
}

// open sends a request on a stream, with a ping after it on a bidirectional one,
// and reads until an answer proves that the request was taken, or the end.
func open(ctx context.Context, conn *grpc.ClientConn, m method, request []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.clients}, m.name)
	if err != nil {
		return err
	}
	send := func(content []byte) { _ = stream.SendMsg(rpc.FrameOf(slices.Clone(content))) } // a failure ends RecvMsg
	send(request)
	const nonce = 0x5eed5eed5eed
	if m.clients {
		ping, err := proto.Marshal(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Ping{Ping: &backendv1.Ping{Nonce: nonce}}})
		if err != nil {
			return err
		}
		send(ping)
	} else if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		var answer rpc.Frame
		if err := stream.RecvMsg(&answer); err != nil {
			return err
		}
		encoded := answer.Take()
		if !m.clients {
			return nil // Started: the topics were accepted
		}
		frame := &backendv1.SubscribeResponse{}
		if err := proto.Unmarshal(encoded, frame); err != nil {
			return err
		}
		if frame.GetPong().GetNonce() == nonce {
			return nil
		}
	}
}

// seeds are requests of every RPC, good ones and broken ones.
func seeds(t testing.TB) map[int][][]byte {
	t.Helper()
	kit := testkit.New(uint64(time.Now().UnixNano()))
	group, client, now := kit.Group(), kit.Client(), time.Now()
	name := &backendv1.Topic{Topic: []byte(group.Topic())}
	query := &backendv1.TopicQuery{Topic: name, Cursor: &backendv1.Cursor{SequenceId: 1}}
	publish := &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{
		kit.GroupMessage(group, 100), kit.Commit(group, 1), kit.Proposal(group, 1), kit.Welcome(client.Installation.PublicKey(), 100),
		kit.WelcomePointer(client.Installation.PublicKey()), client.Registration(now), client.KeyPackage(now), kit.CommitLogEntry(group, 1, 1),
	}}
	requests := map[int][]proto.Message{
		0: {publish},
		1: {&backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{query, query}, Limit: 3}},
		2: {&backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{name}, IncludeFullEnvelope: true}, &backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{name, name}}},
		3: {&backendv1.GetInboxIdsRequest{Requests: []*backendv1.GetInboxIdsRequest_Request{
			{Identifier: client.Wallet.Text(), IdentifierKind: associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM}, {Identifier: "\x00", IdentifierKind: 77}}}},
		4: {&backendv1.VerifySmartContractWalletSignaturesRequest{Signatures: []*backendv1.VerifySmartContractWalletSignaturesRequest_Signature{
			{AccountId: "eip155:1:0x41bfbb381d9ed37188cc72249db4f2f3ef9bdc3b", Hash: make([]byte, 32), Signature: make([]byte, 65)}}}},
		5: {&backendv1.GetConfigurationRequest{}},
		6: {&backendv1.SubscribeStaticRequest{Topics: []*backendv1.TopicQuery{query}}},
		7: {
			&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: &backendv1.SubscribeRequest_Update{Id: 1, Adds: []*backendv1.TopicQuery{query}}}},
			&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Pong{Pong: &backendv1.Pong{Nonce: 3}}},
		},
	}
	for _, e := range publish.GetEnvelopes() {
		requests[0] = append(requests[0], &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{e}})
	}
	for _, broken := range kit.Broken(now) {
		requests[0] = append(requests[0], &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{broken.Envelope}})
	}
	all := map[int][][]byte{}
	for i, list := range requests {
		all[i] = [][]byte{nil, {0xff}, {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}}
		for _, request := range list {
			encoded, err := proto.Marshal(request)
			require.NoError(t, err)
			all[i] = append(all[i], encoded)
		}
	}
	return all
}

// alive publishes a message and reads it back.
func alive(t testing.TB, conn *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	kit := testkit.New(uint64(time.Now().UnixNano()))
	group := kit.Group()
	_, err := backendv1.NewPublishServiceClient(conn).Publish(ctx, &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{kit.GroupMessage(group, 100)}})
	require.NoError(t, err)
	page, err := backendv1.NewQueryServiceClient(conn).Query(ctx, &backendv1.QueryRequest{
		Queries: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(group.Topic())}}}})
	require.NoError(t, err)
	require.Len(t, page.GetEnvelopes(), 1)
}

// FuzzRPC is the open-ended campaign: make fuzz.
func FuzzRPC(f *testing.F) {
	for i, list := range seeds(f) {
		for _, request := range list {
			f.Add(uint8(i), request)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, request []byte) {
		call(t, connect(t), methods[int(which)%len(methods)], request)
	})
}

// mutations is how many changed requests each RPC gets in an ordinary test run.
const mutations = 300

// Requests that are right but for a few bytes reach further than random ones.
//
// Proves I9.
func TestMutatedRequests(t *testing.T) {
	conn := connect(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	all := seeds(t)
	for i, m := range methods {
		answers := map[codes.Code]int{}
		for range mutations {
			request := slices.Clone(all[i][random.IntN(len(all[i]))])
			for range 1 + random.IntN(3) {
				request = mutate(random, request, all[i])
			}
			answers[call(t, conn, m, request)]++
		}
		t.Logf("%s: %v", m.name, answers)
		alive(t, conn)
	}
}

// mutate changes a request in one of the ways that parsers get wrong.
func mutate(random *rand.Rand, request []byte, others [][]byte) []byte {
	if len(request) == 0 {
		return []byte{byte(random.Uint32())}
	}
	at := random.IntN(len(request))
	switch random.IntN(7) {
	case 0:
		request[at] ^= 1 << random.IntN(8)
	case 1:
		request[at] = byte(random.Uint32())
	case 2:
		return request[:at]
	case 3: // a part twice
		return slices.Insert(request, at, request[at:min(len(request), at+random.IntN(200)+1)]...)
	case 4: // a part less
		return slices.Delete(request, at, min(len(request), at+random.IntN(20)+1))
	case 5: // a huge length or number
		return slices.Insert(request, at, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01)
	default: // half of another request
		other := others[random.IntN(len(others))]
		return append(request[:at], other[len(other)/2:]...)
	}
	return request
}
