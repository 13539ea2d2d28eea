package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// encode is for requests that are made once.
func encode(m proto.Message) []byte {
	encoded, err := proto.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("encode a request of ours: %v", err)) // only invalid text does not encode
	}
	return encoded
}

func wireTopic(name topic.Topic) *backendv1.Topic { return &backendv1.Topic{Topic: []byte(name)} }

// query reads pages from the beginning of random topics.
func (r *run) query(ctx context.Context) (*Result, error) {
	if err := r.fill(ctx); err != nil {
		return nil, err
	}
	requests := r.pageRequests()
	rows := min(r.config.Page, r.config.Rows)
	return r.calls(ctx, func(ctx context.Context, c *caller) (int, error) {
		_, err := invoke(ctx, c.conn, queryMethod, requests[c.pick(len(requests))])
		return rows, err
	})
}

func (r *run) pageRequests() [][]byte {
	requests := make([][]byte, len(r.messages))
	for i := range requests {
		requests[i] = encode(&backendv1.QueryRequest{Limit: uint32(r.config.Page), Queries: []*backendv1.TopicQuery{{Topic: wireTopic(r.messages[i].topic)}}})
	}
	return requests
}

// The calls of production, per 1,000: lookups, newest, queries, and the rest are
// publishes.
const (
	lookupShare = 650
	newestShare = 200
	queryShare  = 134
)

// What one call of each kind asks for.
const (
	lookupsOfCall = 10
	newestOfCall  = 20
	knownInboxes  = 50
)

// mixed makes the calls of production in their shares.
func (r *run) mixed(ctx context.Context) (*Result, error) {
	if err := r.fill(ctx); err != nil {
		return nil, err
	}
	lookup, err := r.register(ctx)
	if err != nil {
		return nil, err
	}
	pages := r.pageRequests()
	newest := make([][]byte, 0, len(r.messages))
	for i := range r.messages {
		request := &backendv1.QueryNewestRequest{}
		for j := range newestOfCall {
			request.Topics = append(request.Topics, wireTopic(r.messages[(i+j)%len(r.messages)].topic))
		}
		newest = append(newest, encode(request))
	}
	return r.calls(ctx, func(ctx context.Context, c *caller) (int, error) {
		switch n := c.random.IntN(1000); {
		case n < lookupShare:
			_, err := invoke(ctx, c.conn, inboxMethod, lookup)
			return 0, err
		case n < lookupShare+newestShare:
			_, err := invoke(ctx, c.conn, newestMethod, newest[c.pick(len(newest))])
			return 0, err
		case n < lookupShare+newestShare+queryShare:
			_, err := invoke(ctx, c.conn, queryMethod, pages[c.pick(len(pages))])
			return min(r.config.Page, r.config.Rows), err
		default:
			return r.publishOnce(ctx, c)
		}
	})
}

// register creates inboxes and returns a lookup of some of them.
func (r *run) register(ctx context.Context) ([]byte, error) {
	kit := testkit.New(r.config.Seed ^ r.made.Add(1)<<32 ^ uint64(time.Now().UnixNano()))
	lookup := &backendv1.GetInboxIdsRequest{}
	for range knownInboxes {
		client := kit.Client()
		request := encode(&backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{client.Registration(time.Now())}})
		if _, err := invoke(ctx, r.publishConns[0], publishMethod, request); err != nil {
			return nil, fmt.Errorf("register an inbox: %w", err)
		}
		if len(lookup.Requests) < lookupsOfCall {
			lookup.Requests = append(lookup.Requests, &backendv1.GetInboxIdsRequest_Request{
				Identifier: client.Wallet.Text(), IdentifierKind: associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM,
			})
		}
	}
	return encode(lookup), nil
}

// catchUp opens streams from the beginning of all topics and reads each to the
// heads. One operation is one such stream.
func (r *run) catchUp(ctx context.Context) (*Result, error) {
	if err := r.fill(ctx); err != nil {
		return nil, err
	}
	if err := r.awaitReplica(ctx); err != nil {
		return nil, err
	}
	subscribe := r.subscription(0, len(r.messages))
	want := len(r.messages) * r.config.Rows
	return r.calls(ctx, func(ctx context.Context, c *caller) (int, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := openStatic(ctx, c.conn, subscribe)
		if err != nil {
			return 0, err
		}
		for got := 0; got < want; {
			n, err := receive(stream, nil)
			if err != nil {
				return 0, err
			}
			got += n
		}
		return want, nil
	})
}

// subscription is a static request for topics from their beginnings.
func (r *run) subscription(from, to int) []byte {
	request := &backendv1.SubscribeStaticRequest{}
	for i := from; i < to; i++ {
		request.Topics = append(request.Topics, &backendv1.TopicQuery{Topic: wireTopic(r.messages[i].topic)})
	}
	return encode(request)
}

func openStatic(ctx context.Context, conn *grpc.ClientConn, request []byte) (grpc.ClientStream, error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, staticMethod)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(rpc.FrameOf(request)); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream, stream.CloseSend()
}

// messagesField is that of SubscribeStaticResponse.
const messagesField = 2

// receive reads one frame and counts its envelopes. look, when given, sees the
// bytes.
func receive(stream grpc.ClientStream, look func([]byte)) (envelopes int, err error) {
	var frame rpc.Frame
	if err := stream.RecvMsg(&frame); err != nil {
		return 0, err
	}
	buffer := frame.Data.MaterializeToBuffer(bufferPool)
	defer buffer.Free()
	frame.Free()
	encoded := buffer.ReadOnlyData()
	m := wire.Read(encoded)
	if !m.Next() || !m.IsBytes(messagesField) {
		return 0, nil // Started or a keepalive
	}
	content := m.Bytes()
	if look != nil {
		look(content)
	}
	return countEnvelopes(content), nil
}
