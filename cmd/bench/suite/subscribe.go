package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// subscriptions are bidirectional streams that answer pings and look at nothing
// else.
type subscriptions struct {
	ctx       context.Context
	cancel    context.CancelFunc
	conns     []*grpc.ClientConn
	receiving sync.WaitGroup

	mu  sync.Mutex
	err error // the first that ended a stream before close
}

func newSubscriptions(ctx context.Context) *subscriptions {
	s := &subscriptions{}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// dial opens one more connection.
func (s *subscriptions) dial(address string) (*grpc.ClientConn, error) {
	const longest = 64 << 20
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(longest), grpc.MaxCallSendMsgSize(longest)))
	if err != nil {
		return nil, err
	}
	s.conns = append(s.conns, conn)
	return conn, nil
}

// last is the connection that was opened last, nil if there is none.
func (s *subscriptions) last() *grpc.ClientConn {
	if len(s.conns) == 0 {
		return nil
	}
	return s.conns[len(s.conns)-1]
}

// close ends all streams and says what ended one of them before.
func (s *subscriptions) close() error {
	s.cancel()
	s.receiving.Wait()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	return s.err
}

func (s *subscriptions) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && s.ctx.Err() == nil {
		s.err = fmt.Errorf("a stream ended: %w", err)
	}
}

// open opens a stream, adds topics in one update and returns when it is applied,
// with the time from the update to that.
func (s *subscriptions) open(conn *grpc.ClientConn, topics []topic.Topic) (time.Duration, error) {
	stream, err := backendv1.NewSubscriptionServiceClient(conn).Subscribe(s.ctx)
	if err != nil {
		return 0, err
	}
	update := &backendv1.SubscribeRequest_Update{Id: 1}
	for _, name := range topics {
		update.Adds = append(update.Adds, &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: []byte(name)}})
	}
	if _, err := stream.Recv(); err != nil { // Started
		return 0, err
	}
	begun := time.Now()
	if err := stream.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: update}}); err != nil {
		_, reason := stream.Recv()
		return 0, errors.Join(err, reason)
	}
	for applied := false; !applied; {
		frame, err := stream.Recv()
		if err != nil {
			return 0, err
		}
		applied = frame.GetApplied() != nil
	}
	took := time.Since(begun)
	s.receiving.Go(func() { s.receive(stream) })
	return took, nil
}

func (s *subscriptions) receive(stream grpc.BidiStreamingClient[backendv1.SubscribeRequest, backendv1.SubscribeResponse]) {
	for {
		frame, err := stream.Recv()
		if err != nil {
			s.failed(err)
			return
		}
		if ping := frame.GetPing(); ping != nil {
			_ = stream.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Pong{Pong: &backendv1.Pong{Nonce: ping.GetNonce()}}})
		}
	}
}

// quietTopics are group topics that nobody publishes to.
func quietTopics(from, to int) []topic.Topic {
	names := make([]topic.Topic, 0, to-from)
	for n := from; n < to; n++ {
		id := make([]byte, topic.GroupIDLength)
		binary.BigEndian.PutUint64(id, uint64(n))
		binary.BigEndian.PutUint64(id[8:], uint64(n))
		name, err := topic.New(topic.GroupMessage, id)
		if err != nil {
			panic(fmt.Sprintf("make a topic of ours: %v", err)) // the length is right
		}
		names = append(names, name)
	}
	return names
}
