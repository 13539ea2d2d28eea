package stream

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table is a database of a few rows: what these tests are about is time, which
// a real one would not let them stop.
type table struct {
	mu   sync.Mutex
	rows []store.PageRow
	// hold, if it is not nil, delays the reading of heads until it is closed.
	hold chan struct{}
}

func (d *table) Heads(ctx context.Context, topics []topic.Topic) ([]topic.SequenceID, error) {
	if d.hold != nil {
		select {
		case <-d.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	heads := make([]topic.SequenceID, len(topics))
	for i, name := range topics {
		for _, row := range d.rows {
			if row.Topic == name {
				heads[i] = row.SequenceID
			}
		}
	}
	return heads, nil
}

func (d *table) ReadPage(_ context.Context, requests []store.PageRequest, maxBytes int) (rows []store.PageRow, cut bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	bytes := 0
	for i, q := range requests {
		n := 0
		for _, row := range d.rows {
			if row.Topic != q.Topic || row.SequenceID <= q.After || n == q.MaxRows {
				continue
			}
			if bytes >= maxBytes {
				cut = true
				break
			}
			row.Request = i
			rows = append(rows, row)
			bytes += len(row.Encoded)
			n++
		}
	}
	return rows, cut, nil
}

// store adds a row and returns the notice of it.
func (d *table) store(name topic.Topic, size int) notice.Notice {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := notice.Notice{Topic: name, SequenceID: topic.SequenceID(len(d.rows) + 1), Lineage: testLineage}
	for _, row := range d.rows {
		if row.Topic == name {
			n.Previous = row.SequenceID
		}
	}
	meta := envelope.Meta{Topic: name, SequenceID: n.SequenceID, ServerNS: time.Now().UnixNano()}
	payload, err := proto.Marshal(&backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_GroupMessage{
		GroupMessage: &backendv1.GroupMessage{Data: make([]byte, size)},
	}})
	if err != nil {
		panic(err)
	}
	n.Envelope = envelope.AppendServer(nil, &meta, payload)
	d.rows = append(d.rows, store.PageRow{Topic: name, SequenceID: n.SequenceID, ServerNS: meta.ServerNS, Encoded: n.Envelope})
	return n
}

var testLineage = notice.Lineage{SystemIdentifier: 1, Timeline: 1}

func testConfig() Config {
	return Config{
		OutputFrames: 64, OutputBytes: 16 << 20, FrameBytes: 2 << 20, PageBytes: 1 << 20, PageRows: 2048,
		NoticeBytes: 256 << 20, BudgetBytes: 512 << 20, Fetches: 4, HeadReads: 4,
		SlowClientTimeout: 30 * time.Second, PongTimeout: 90 * time.Second, DatabaseGrace: time.Minute,
	}
}

// newHub returns a hub that is bound to the table.
func newHub(t *testing.T, db *table, change ...func(*Config, *limit.Config)) *Hub {
	t.Helper()
	config, limits := testConfig(), limit.Default()
	for _, c := range change {
		c(&config, &limits)
	}
	require.NoError(t, config.Validate())
	require.NoError(t, config.ValidateWith(limits))
	h := NewHub(config, limits, Deps{Database: db, Logger: slog.New(slog.DiscardHandler), Meter: NewMeter(telemetry.Discard())})
	h.Found(testLineage)
	return h
}

// transport is one in memory. The client's side are its methods.
type transport struct {
	grpc.ServerStream
	t        *testing.T
	ctx      context.Context
	cancel   context.CancelFunc
	toServer chan []byte
	toClient chan []byte // unbuffered: the transport takes what the client takes
	result   chan error
	received int // calls of RecvMsg
	mu       sync.Mutex
}

func (w *transport) Context() context.Context { return w.ctx }

func (w *transport) SendMsg(m any) error {
	frame := m.(*rpc.Frame)
	taken := frame.Take()
	select {
	case w.toClient <- taken:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

func (w *transport) RecvMsg(m any) error {
	w.mu.Lock()
	w.received++
	w.mu.Unlock()
	select {
	case message, open := <-w.toServer:
		if !open {
			return io.EOF
		}
		*m.(*rpc.Frame) = *rpc.FrameOf(message)
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

func (w *transport) calls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.received
}

// serve runs a handler on a new transport, as gRPC would.
func serve(t *testing.T, handle func(grpc.ServerStream) error) *transport {
	w := &transport{t: t, toServer: make(chan []byte, 1000), toClient: make(chan []byte), result: make(chan error, 1)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	go func() {
		w.result <- handle(w)
		w.cancel()
	}()
	return w
}

func (w *transport) send(message proto.Message) {
	w.t.Helper()
	encoded, err := proto.Marshal(message)
	require.NoError(w.t, err)
	w.toServer <- encoded
}

func (w *transport) update(id uint64, adds []topic.Topic, removes ...topic.Topic) {
	w.t.Helper()
	u := &backendv1.SubscribeRequest_Update{Id: id}
	for _, name := range adds {
		u.Adds = append(u.Adds, &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: []byte(name)}})
	}
	for _, name := range removes {
		u.Removes = append(u.Removes, &backendv1.Topic{Topic: []byte(name)})
	}
	w.send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: u}})
}

func (w *transport) ping(nonce uint64) {
	w.t.Helper()
	w.send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Ping{Ping: &backendv1.Ping{Nonce: nonce}}})
}

func (w *transport) pong(nonce uint64) {
	w.t.Helper()
	w.send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Pong{Pong: &backendv1.Pong{Nonce: nonce}}})
}

// next returns the next frame of a bidirectional stream.
func (w *transport) next() *backendv1.SubscribeResponse {
	w.t.Helper()
	frame := &backendv1.SubscribeResponse{}
	w.take(frame)
	return frame
}

func (w *transport) take(frame proto.Message) {
	w.t.Helper()
	select {
	case encoded := <-w.toClient:
		require.NoError(w.t, proto.Unmarshal(encoded, frame))
	case err := <-w.result:
		require.FailNow(w.t, "the stream ended", "%v", err)
	}
}

// end returns what the handler returned.
func (w *transport) end() error {
	for {
		select {
		case <-w.toClient:
		case err := <-w.result:
			return err
		}
	}
}

// hangUp ends the stream from the client's side and waits for the hub.
func (w *transport) hangUp(h *Hub) {
	w.cancel()
	_ = w.end()
	h.Close()
}

func group(n byte) topic.Topic {
	id := make([]byte, topic.GroupIDLength)
	id[0] = n
	name, err := topic.New(topic.GroupMessage, id)
	if err != nil {
		panic(err)
	}
	return name
}
