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

	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// load publishes group messages, one a request, each caller waiting for its
// answer before it sends the next.
type load struct {
	address  string
	conns    int
	messages []message
	made     atomic.Uint64
}

// message is a gRPC message with an encoded request whose ciphertext has room for
// a number.
type message struct {
	framed []byte
	at     int
}

const (
	markerBytes = 16
	// frameHeader is the flag and the length in front of a gRPC message.
	frameHeader = 5
)

func newLoad(address string, o options) (*load, error) {
	l := &load{address: address, conns: o.conns}
	kit := testkit.New(uint64(time.Now().UnixNano()))
	for range o.topics {
		m, err := newMessage(kit, o.size)
		if err != nil {
			return nil, err
		}
		if inFlight := len(m.framed) * ((o.clients + o.conns - 1) / o.conns); inFlight > maxInFlight {
			return nil, fmt.Errorf("%d bytes would be in flight on a connection, expected at most %d: take more connections or smaller messages", inFlight, maxInFlight)
		}
		l.messages = append(l.messages, m)
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
	framed := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(encoded)))
	framed = append(framed, encoded...)
	at := bytes.Index(framed, marker)
	if at < frameHeader {
		return message{}, errors.New("the ciphertext is not in the request")
	}
	return message{framed: framed, at: at}, nil
}

// appendNext appends a message that nobody made before.
func (l *load) appendNext(dst []byte) []byte {
	n := l.made.Add(1)
	m := &l.messages[n*2654435761%uint64(len(l.messages))]
	start := len(dst)
	dst = append(dst, m.framed...)
	binary.BigEndian.PutUint64(dst[start+m.at:], n)
	return dst
}

func (l *load) run(ctx context.Context, clients int, length time.Duration) (result, error) {
	conns := min(l.conns, clients)
	took := make([][]time.Duration, conns)
	failures := make([]error, conns)
	begun := time.Now()
	var wait sync.WaitGroup
	for i := range conns {
		callers := (clients + i) / conns // as even as it gets
		wait.Go(func() { took[i], failures[i] = callOn(ctx, l, callers, begun.Add(length)) })
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
