package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// load publishes group messages, one a request, each waiting for its answer.
type load struct {
	conns    []*grpc.ClientConn
	messages []message
	made     atomic.Uint64
}

// message is an encoded request whose ciphertext has room for a number.
type message struct {
	encoded []byte
	at      int
}

const markerBytes = 16

func newLoad(address string, o options) (*load, error) {
	l := &load{}
	kit := testkit.New(uint64(time.Now().UnixNano()))
	for range o.topics {
		m, err := newMessage(kit, o.size)
		if err != nil {
			return nil, err
		}
		l.messages = append(l.messages, m)
	}
	for range o.conns {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rpc.Codec{})))
		if err != nil {
			return nil, err
		}
		l.conns = append(l.conns, conn)
	}
	return l, nil
}

func newMessage(kit *testkit.Kit, size int) (message, error) {
	envelope := kit.GroupMessage(kit.Group(), size)
	data := envelope.GetGroupMessage().GetData()
	marker := data[len(data)-markerBytes:] // the end of the ciphertext
	encoded, err := proto.Marshal(&backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{envelope}})
	if err != nil {
		return message{}, err
	}
	at := bytes.Index(encoded, marker)
	if at < 0 {
		return message{}, errors.New("the ciphertext is not in the request")
	}
	return message{encoded: encoded, at: at}, nil
}

func (l *load) close() {
	for _, conn := range l.conns {
		_ = conn.Close()
	}
}

// next is a request that nobody made before.
func (l *load) next() *rpc.Frame {
	n := l.made.Add(1)
	m := &l.messages[n*2654435761%uint64(len(l.messages))]
	encoded := slices.Clone(m.encoded)
	binary.BigEndian.PutUint64(encoded[m.at:], n)
	return rpc.FrameOf(encoded)
}

func (l *load) run(ctx context.Context, clients int, length time.Duration) (result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait sync.WaitGroup
	took := make([][]time.Duration, clients)
	failures := make([]error, clients)
	begun := time.Now()
	for i := range clients {
		wait.Go(func() {
			conn := l.conns[i%len(l.conns)]
			for time.Since(begun) < length {
				start := time.Now()
				var response rpc.Frame
				if err := conn.Invoke(ctx, "/xmtp.backend.v1.PublishService/Publish", l.next(), &response); err != nil {
					failures[i] = fmt.Errorf("publish: %w", err)
					cancel()
					return
				}
				response.Data.Free()
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	wait.Wait()
	spent := time.Since(begun)
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) == 0 {
		return result{}, errors.Join(errors.Join(failures...), errors.New("nothing was published"))
	}
	return result{count: len(all), length: spent, clients: clients, p99: all[len(all)*99/100]}, errors.Join(failures...)
}
