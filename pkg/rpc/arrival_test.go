package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
)

// The limits of a public server under test.
const (
	publicLimit  = 1 << 20
	publicBudget = 4 << 20
)

// public is a server that meets clients. All of them have one holder.
type public struct {
	address   string
	bodies    *budget.Budget
	cancelled chan struct{}
}

// servePublic serves Echo, which answers with its request, and Each, which answers
// each message of a stream.
func servePublic(t *testing.T, timeout, patience time.Duration) *public {
	t.Helper()
	p := &public{bodies: budget.New(publicBudget, 0), cancelled: make(chan struct{}, 100)}
	holder := p.bodies.Holder()
	server := rpc.NewServer(patient, rpc.ServerDeps{
		Metrics: telemetry.Discard(), Logger: slog.New(slog.DiscardHandler), MaxRequestBytes: publicLimit,
		Public: &rpc.Public{
			Arrival:   rpc.Arrival{Timeout: timeout, Patience: patience, Holder: func(context.Context) *budget.Holder { return holder }},
			Cancelled: func(context.Context) { p.cancelled <- struct{}{} },
		},
	}, rpc.Service{Name: "test.Service", Methods: []rpc.Method{{Name: "Echo", Unary: echo}, {Name: "Each", ClientStreams: true, Stream: echoEach}}})
	listener, err := freeport.Listen()
	require.NoError(t, err)
	p.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	server.SetServing(true)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	return p
}

func echoEach(stream grpc.ServerStream) error {
	for {
		var frame rpc.Frame
		err := stream.RecvMsg(&frame)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		frame.Free()
		if err := stream.SendMsg(rpc.FrameOf([]byte("got it"))); err != nil {
			return err
		}
	}
}

// used waits until so many bytes of the budget are in use.
func (p *public) used(t *testing.T, bytes int64) {
	t.Helper()
	require.Eventually(t, func() bool { return p.bodies.Used() == bytes }, soon, time.Millisecond, "%d bytes in use, of the budget's %d", bytes, p.bodies.Used())
}

// rawClient sends frames as it likes.
type rawClient struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	next   uint32
}

func (p *public) client(t *testing.T) *rawClient {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	c := &rawClient{t: t, conn: conn, framer: http2.NewFramer(conn, conn), next: 1}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	require.NoError(t, c.framer.WriteSettings())
	return c
}

// open begins a call.
func (c *rawClient) open(method string, more ...hpack.HeaderField) (id uint32) {
	c.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/test.Service/" + method},
		{Name: ":authority", Value: "a"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, more...) {
		require.NoError(c.t, encoder.WriteField(field))
	}
	id = c.next
	c.next += 2
	require.NoError(c.t, c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}))
	return id
}

func (c *rawClient) send(id uint32, data []byte, ended bool) {
	c.t.Helper()
	for len(data) > 16384 {
		require.NoError(c.t, c.framer.WriteData(id, false, data[:16384]))
		data = data[16384:]
	}
	require.NoError(c.t, c.framer.WriteData(id, ended, data))
}

// status waits for the end of a call.
func (c *rawClient) status(id uint32) string {
	c.t.Helper()
	for {
		frame, err := c.framer.ReadFrame()
		require.NoError(c.t, err)
		headers, ok := frame.(*http2.MetaHeadersFrame)
		if !ok || headers.StreamID != id {
			continue
		}
		for _, field := range headers.Fields {
			if field.Name == "grpc-status" {
				return field.Value
			}
		}
	}
}

// prefixed is the first bytes of a message that says how long it is.
func prefixed(length uint32, data ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, length), data...)
}

func TestALongMessageIsRefusedByItsPrefix(t *testing.T) {
	p := servePublic(t, soon, soon)
	for _, method := range []string{"Echo", "Each"} {
		for length, want := range map[uint32]string{publicLimit + 1: "11", 1<<32 - 1: "11"} {
			c := p.client(t)
			id := c.open(method)
			c.send(id, prefixed(length, 1), false)
			require.Equal(t, want, c.status(id), "%s of %d bytes", method, length)
		}
	}
	conn := dial(t, p.address)
	for length, want := range map[int]codes.Code{0: codes.OK, 1: codes.OK, publicLimit: codes.OK, publicLimit + 1: codes.OutOfRange} {
		sent := bytes.Repeat([]byte{7}, length)
		got, _, err := call(t, conn, "Echo", sent)
		require.Equal(t, want, status.Code(err), "%d bytes: %v", length, err)
		if err == nil {
			require.True(t, bytes.Equal(sent, got))
		}
	}
	p.used(t, 0)
}

func TestACompressedMessageIsBoundedByWhatItInflatesTo(t *testing.T) {
	p := servePublic(t, soon, soon)
	conn := dial(t, p.address)
	for length, want := range map[int]codes.Code{1: codes.OK, 100_000: codes.OK, publicLimit: codes.OK, publicLimit + 1: codes.ResourceExhausted} {
		sent := bytes.Repeat([]byte{7}, length)
		var frame rpc.Frame
		err := conn.Invoke(t.Context(), "/test.Service/Echo", rpc.FrameOf(sent), &frame, grpc.UseCompressor("gzip"), grpc.WaitForReady(true))
		require.Equal(t, want, status.Code(err), "%d bytes: %v", length, err)
		if err == nil {
			require.True(t, bytes.Equal(sent, frame.Take()))
		}
	}
	c := p.client(t)
	broken := c.open("Echo", hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"})
	c.send(broken, []byte{1, 0, 0, 0, 2, 9, 9}, true)
	require.Equal(t, "3", c.status(broken))
	unnamed := c.open("Echo")
	c.send(unnamed, []byte{1, 0, 0, 0, 2, 9, 9}, true)
	require.Equal(t, "12", c.status(unnamed))
	p.used(t, 0)
}

// What a message costs of the budget is what has arrived of it, and it goes back
// however the call ends.
func TestAMessageTakesRoomAsItArrives(t *testing.T) {
	const part, room = 200 << 10, 256 << 10
	for name, end := range map[string]func(c *rawClient, id uint32){
		"it is complete":          func(c *rawClient, id uint32) { c.send(id, make([]byte, publicLimit-part), true) },
		"the client resets it":    func(c *rawClient, id uint32) { require.NoError(c.t, c.framer.WriteRSTStream(id, http2.ErrCodeCancel)) },
		"the request ends early":  func(c *rawClient, id uint32) { c.send(id, nil, true) },
		"the connection is ended": func(c *rawClient, _ uint32) { require.NoError(c.t, c.conn.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			p := servePublic(t, soon, soon)
			c := p.client(t)
			go func() { _, _ = io.Copy(io.Discard, c.conn) }() // its window is as large as all that is sent
			for range 90 {
				id := c.open("Echo")
				c.send(id, prefixed(publicLimit, 1), false)
			}
			id := c.open("Echo")
			c.send(id, prefixed(publicLimit, make([]byte, part)...), false)
			p.used(t, room) // of the others, nothing
			end(c, id)
			p.used(t, 0)
		})
	}
}

// A full budget holds up long messages, and no short ones.
func TestShortMessagesHaveRoomBesideLongOnes(t *testing.T) {
	p := servePublic(t, soon, time.Millisecond)
	other := p.bodies.Holder()
	require.True(t, other.TryTake(p.bodies.Share()))
	conn := dial(t, p.address)
	for range 100 {
		_, _, err := call(t, conn, "Echo", make([]byte, 16<<10))
		require.NoError(t, err)
	}
	_, _, err := call(t, conn, "Echo", make([]byte, 100<<10))
	require.Equal(t, codes.Unavailable, status.Code(err))
	other.Give(p.bodies.Share())
	_, _, err = call(t, conn, "Echo", make([]byte, 100<<10))
	require.NoError(t, err)
	p.used(t, 0)
}

// Messages that hold a part of a full budget and wait for more make way for others.
func TestMessagesThatWaitForEachOtherMakeWay(t *testing.T) {
	p := servePublic(t, soon, 100*time.Millisecond)
	results := make(chan error, 8)
	conn := dial(t, p.address)
	for range cap(results) {
		go func() {
			var frame rpc.Frame
			results <- conn.Invoke(t.Context(), "/test.Service/Echo", rpc.FrameOf(make([]byte, publicLimit)), &frame, grpc.WaitForReady(true))
		}()
	}
	for range cap(results) {
		select {
		case err := <-results:
			require.Contains(t, []codes.Code{codes.OK, codes.Unavailable}, status.Code(err))
		case <-time.After(soon):
			require.Fail(t, "messages wait for ever")
		}
	}
	p.used(t, 0)
}

func TestAMessageMustArriveInTime(t *testing.T) {
	p := servePublic(t, 300*time.Millisecond, soon)
	for name, c := range map[string]struct {
		method string
		data   []byte
	}{
		"nothing of it":                   {"Echo", nil},
		"part of its prefix":              {"Echo", []byte{0, 0}},
		"part of it":                      {"Echo", prefixed(1000, 1, 2, 3)},
		"part of a long one":              {"Echo", prefixed(publicLimit, make([]byte, 100<<10)...)},
		"all but its end":                 {"Echo", prefixed(1, 9)},
		"part of a prefix of a stream":    {"Each", []byte{0, 0}},
		"part of a message of a stream":   {"Each", prefixed(1000, 1)},
		"part of a stream's second":       {"Each", append(prefixed(1, 9), 0, 0)},
		"part of a stream's long message": {"Each", prefixed(publicLimit, make([]byte, 100<<10)...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := p.client(t)
			id := client.open(c.method)
			if c.data != nil {
				client.send(id, c.data, false)
			}
			require.Equal(t, "4", client.status(id))
			again := client.open("Echo") // the connection goes on
			client.send(again, prefixed(1, 9), true)
			require.Equal(t, "0", client.status(again))
		})
	}
	t.Cleanup(func() { p.used(t, 0) })
}

// Between the messages of a stream, and before the first, there is no limit.
func TestAQuietStreamIsNotLate(t *testing.T) {
	const limit = 100 * time.Millisecond
	p := servePublic(t, limit, soon)
	c := p.client(t)
	quiet, late := c.open("Each"), c.open("Echo")
	for range 3 {
		require.Equal(t, "4", c.status(late)) // so long at least the stream was quiet
		c.send(quiet, prefixed(1, 9), false)
		late = c.open("Echo")
	}
	c.send(quiet, nil, true)
	require.Equal(t, "0", c.status(quiet))
}

// A message may come in any frames, also in those of one byte.
func TestAMessageArrivesInFramesOfAnyLength(t *testing.T) {
	p := servePublic(t, soon, soon)
	c := p.client(t)
	id := c.open("Each")
	for range 2 {
		message := prefixed(20_000, bytes.Repeat([]byte{3}, 20_000)...)
		for _, b := range message {
			require.NoError(t, c.framer.WriteData(id, false, []byte{b}))
		}
	}
	c.send(id, nil, true)
	require.Equal(t, "0", c.status(id))
	p.used(t, 0)
}

func TestTheServerIsToldWhoGivesUpCalls(t *testing.T) {
	p := servePublic(t, soon, soon)
	conn := dial(t, p.address)
	_, _, err := call(t, conn, "Echo", nil)
	require.NoError(t, err)
	require.Empty(t, p.cancelled)
	c := p.client(t)
	for range 3 {
		id := c.open("Echo")
		require.NoError(t, c.framer.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	for range 3 {
		<-p.cancelled
	}
}

func TestALongAnswerIsAnnounced(t *testing.T) {
	for length, want := range map[int][]string{64 << 10: nil, 64<<10 + 1: {"65537"}} {
		s := serve(t, patient, rpc.Method{Name: "Page", Unary: func(context.Context, []byte) (*rpc.Frame, error) {
			return rpc.FrameOf(make([]byte, length)), nil
		}})
		stream, err := dial(t, s.address).NewStream(t.Context(), &grpc.StreamDesc{}, "/test.Service/Page", grpc.WaitForReady(true))
		require.NoError(t, err)
		require.NoError(t, stream.SendMsg(&rpc.Frame{}))
		header, err := stream.Header()
		require.NoError(t, err)
		require.Equal(t, want, header.Get(rpc.AnswerBytes))
		require.NoError(t, stream.RecvMsg(&rpc.Frame{}))
	}
}
