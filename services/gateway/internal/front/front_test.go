package front

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/forward"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clientBytes is what a client sends: the preface, and what write adds.
func clientBytes(write func(framer *http2.Framer, block func(contentType string) []byte)) []byte {
	var sent bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&sent, nil)
	var encoded bytes.Buffer
	encoder := hpack.NewEncoder(&encoded)
	write(framer, func(contentType string) []byte {
		encoded.Reset()
		_ = encoder.WriteField(hpack.HeaderField{Name: ":method", Value: "POST"})
		if contentType != "" {
			_ = encoder.WriteField(hpack.HeaderField{Name: "content-type", Value: contentType})
		}
		return bytes.Clone(encoded.Bytes())
	})
	return sent.Bytes()
}

func withHeaders(contentType string) []byte {
	return clientBytes(func(framer *http2.Framer, block func(string) []byte) {
		_ = framer.WriteSettings()
		_ = framer.WriteWindowUpdate(0, 1000)
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(contentType), EndHeaders: true, PadLength: 3})
	})
}

func TestTheFirstHeadersDecide(t *testing.T) {
	for contentType, native := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc;charset=utf-8": true,
		"application/grpc-web": false, "application/grpc-web+proto": false, "application/grpc-web-text": false,
		"application/json": false, "application/connect+proto": false, "": false,
	} {
		sent := withHeaders(contentType)
		// Until the last byte, nothing tells.
		for n := range sent {
			_, err := classify(sent[:n], 16384)
			require.ErrorIs(t, err, errMore, "%d of %d bytes", n, len(sent))
		}
		got, err := classify(sent, 16384)
		require.NoError(t, err)
		require.Equal(t, native, got, contentType)
	}
	for _, other := range []string{"GET / HTTP/1.1\r\n", "PRI * HTTP/1.1", "\x16\x03\x01", "P OST"} {
		got, err := classify([]byte(other), 16384)
		require.NoError(t, err)
		require.False(t, got)
	}
}

// pieces is a connection whose reads come in given pieces.
type pieces struct {
	net.Conn
	rest   [][]byte
	sent   bytes.Buffer
	closed bool
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[0])
	if p.rest[0] = p.rest[0][n:]; len(p.rest[0]) == 0 {
		p.rest = p.rest[1:]
	}
	return n, nil
}

func (p *pieces) Write(b []byte) (int, error) { return p.sent.Write(b) }
func (p *pieces) Close() error                { p.closed = true; return nil }

// cut splits bytes at random places.
func cut(whole []byte, random *rand.Rand) [][]byte {
	var parts [][]byte
	for len(whole) > 0 {
		n := 1 + random.IntN(min(len(whole), 1+random.IntN(40)))
		parts = append(parts, bytes.Clone(whole[:n]))
		whole = whole[n:]
	}
	return parts
}

func native(t *testing.T, whole []byte, ackPending bool, seed uint64) (conn *nativeConn, wire *pieces, mixed *int) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	parts := cut(whole, random)
	wire = &pieces{rest: parts[1:]}
	mixed = new(int)
	conn = newNativeConn(found{conn: wire, read: parts[0], settingsSent: ackPending}, NativeConfig{
		MaxConcurrentStreams: 100, MaxRequestBytes: 1 << 20, MaxHeaderBytes: 16384,
		ArrivalTimeout: time.Hour, ClientStreams: map[string]bool{"/streams": true},
		Budget: forward.NewBudget(1<<20, telemetry.Discard()),
	}, func() { *mixed++ })
	return conn, wire, mixed
}

// frames reads what a framer makes of the bytes, in short.
func frames(t *testing.T, encoded []byte, decoder *hpack.Decoder) []string {
	t.Helper()
	framer := http2.NewFramer(io.Discard, bytes.NewReader(encoded))
	framer.SetMaxReadFrameSize(1 << 20)
	framer.ReadMetaHeaders = decoder
	var got []string
	for {
		frame, err := framer.ReadFrame()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		text := frame.Header().Type.String()
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			text += " " + frame.ErrCode.String()
		case *http2.MetaHeadersFrame:
			for _, field := range frame.Fields {
				if field.Name == "grpc-status" || field.Name == "content-type" || field.Name == ":status" {
					text += " " + field.Value
				}
			}
		}
		got = append(got, text)
	}
}

func TestWhatIsNativePassesUnchanged(t *testing.T) {
	message := func(length int) []byte {
		return append([]byte{0, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}, make([]byte, length)...)
	}
	whole := clientBytes(func(framer *http2.Framer, block func(string) []byte) {
		_ = framer.WriteSettings()
		for id := uint32(1); id < 9; id += 2 {
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block("application/grpc"), EndHeaders: true})
			data := bytes.Join([][]byte{message(0), message(3), message(100_000), message(7)}, nil)
			for len(data) > 0 {
				n := min(len(data), 1000*int(id))
				_ = framer.WriteData(id, n == len(data), data[:n])
				data = data[n:]
			}
			_ = framer.WritePing(false, [8]byte{1})
		}
	})
	for seed := range uint64(30) {
		conn, wire, mixed := native(t, whole, false, seed)
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.True(t, bytes.Equal(whole, got), "seed %d", seed)
		require.Zero(t, *mixed)
		require.Zero(t, wire.sent.Len())
	}
}

func TestTheAcknowledgementOfOurSettingsIsLeftOut(t *testing.T) {
	whole := clientBytes(func(framer *http2.Framer, block func(string) []byte) {
		_ = framer.WriteSettings()
		_ = framer.WriteSettingsAck()
		_ = framer.WriteSettingsAck()
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("application/grpc"), EndHeaders: true})
		_ = framer.WriteData(1, true, []byte("\x00\x00\x00\x00\x01x"))
	})
	want := []string{"SETTINGS", "SETTINGS", "HEADERS application/grpc", "DATA"}
	for seed := range uint64(30) {
		conn, _, _ := native(t, whole, true, seed)
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, want, frames(t, got[len(preface):], hpack.NewDecoder(4096, nil)), "seed %d", seed)

		parts := cut(whole, rand.New(rand.NewPCG(seed, 2)))
		got, err = io.ReadAll(newReplayConn(found{conn: &pieces{rest: parts[1:]}, read: parts[0], settingsSent: true}))
		require.NoError(t, err)
		require.Equal(t, want, frames(t, got[len(preface):], hpack.NewDecoder(4096, nil)), "seed %d", seed)
	}
}

func TestALongMessageIsRefusedByItsPrefix(t *testing.T) {
	for name, c := range map[string]struct {
		data     [][]byte
		answered bool
		want     []string // for the client
	}{
		"in one frame":           {[][]byte{{0, 0, 0x10, 0, 1, 9}}, false, []string{"HEADERS 200 application/grpc 11", "RST_STREAM NO_ERROR"}},
		"in three frames":        {[][]byte{{0, 0}, {0x10, 0}, {1, 9, 9}}, false, []string{"HEADERS 200 application/grpc 11", "RST_STREAM NO_ERROR"}},
		"the second message":     {[][]byte{{0, 0, 0, 0, 1, 9, 0, 0xff, 0xff, 0xff, 0xff}}, false, []string{"HEADERS 200 application/grpc 11", "RST_STREAM NO_ERROR"}},
		"after the first answer": {[][]byte{{0, 0, 0x10, 0, 1, 9}}, true, []string{"HEADERS 200", "HEADERS 11", "RST_STREAM NO_ERROR"}},
		"at the limit":           {[][]byte{{0, 0, 0x10, 0, 0, 9}}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			whole := clientBytes(func(framer *http2.Framer, block func(string) []byte) {
				_ = framer.WriteSettings()
				_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("application/grpc"), EndHeaders: true})
			})
			rest := clientBytes(func(framer *http2.Framer, _ func(string) []byte) {
				for _, data := range c.data {
					_ = framer.WriteData(1, false, data)
				}
			})[len(preface):]
			for seed := range uint64(20) {
				conn, wire, _ := native(t, whole, false, seed)
				_, err := io.ReadAll(conn)
				require.NoError(t, err)
				if c.answered {
					answer(t, conn)
				}
				wire.rest = cut(rest, rand.New(rand.NewPCG(seed, 3)))
				toServer, err := io.ReadAll(conn)
				require.NoError(t, err)
				require.Equal(t, c.want, frames(t, wire.sent.Bytes(), hpack.NewDecoder(4096, nil)))
				if c.want != nil {
					require.Contains(t, frames(t, toServer, hpack.NewDecoder(4096, nil)), "RST_STREAM CANCEL")
				} else {
					require.Equal(t, rest, toServer)
				}
			}
		})
	}
}

// answer is the server's headers, written in two pieces.
func answer(t *testing.T, conn *nativeConn) {
	t.Helper()
	var block, frame bytes.Buffer
	require.NoError(t, hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"}))
	require.NoError(t, http2.NewFramer(&frame, nil).WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	for _, part := range [][]byte{frame.Bytes()[:4], frame.Bytes()[4:]} {
		_, err := conn.Write(part)
		require.NoError(t, err)
	}
}

func TestACallThatIsNotNativeIsSentElsewhere(t *testing.T) {
	whole := clientBytes(func(framer *http2.Framer, block func(string) []byte) {
		_ = framer.WriteSettings()
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("application/grpc"), EndHeaders: true})
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block("application/grpc-web+proto"), EndHeaders: true})
		_ = framer.WriteData(3, true, []byte("\x00\x00\x00\x00\x00"))
		_ = framer.WriteData(1, true, []byte("\x00\x00\x00\x00\x00"))
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: block("application/grpc"), EndHeaders: true})
	})
	for seed := range uint64(20) {
		conn, wire, mixed := native(t, whole, false, seed)
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, []string{"SETTINGS", "HEADERS application/grpc", "DATA", "DATA"}, frames(t, got[len(preface):], hpack.NewDecoder(4096, nil)))
		require.Equal(t, []string{"GOAWAY", "RST_STREAM REFUSED_STREAM", "RST_STREAM REFUSED_STREAM"}, frames(t, wire.sent.Bytes(), hpack.NewDecoder(4096, nil)))
		require.Equal(t, 1, *mixed)
	}
}

func TestFramesOfOurOwnWaitForTheEndOfAnother(t *testing.T) {
	conn, wire, _ := native(t, []byte(http2.ClientPreface), false, 1)
	ping := []byte{0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}
	_, err := conn.Write(ping[:12])
	require.NoError(t, err)
	conn.send(resetFrame(1, http2.ErrCodeCancel))
	require.Equal(t, ping[:12], wire.sent.Bytes())
	_, err = conn.Write(ping[12:])
	require.NoError(t, err)
	require.Equal(t, []string{"PING", "RST_STREAM CANCEL"}, frames(t, wire.sent.Bytes(), hpack.NewDecoder(4096, nil)))
}

// holdsRoom reports whether the connection has something of its budget.
func holdsRoom(t *testing.T, conn *nativeConn) bool {
	t.Helper()
	give, ok := conn.config.Budget.TryTake(t.Context(), 1<<20)
	if ok {
		give()
	}
	return !ok
}

func TestAMessageTakesFromTheBudgetWhileItArrives(t *testing.T) {
	whole := clientBytes(func(framer *http2.Framer, block func(string) []byte) {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("application/grpc"), EndHeaders: true})
		_ = framer.WriteData(1, false, append([]byte{0, 0, 0x04, 0, 0}, make([]byte, 100)...)) // 256 KiB, of which 100 bytes came
	})
	for name, end := range map[string]func(conn *nativeConn, wire *pieces){
		"it is complete": func(_ *nativeConn, wire *pieces) {
			wire.rest = cut(clientBytes(func(framer *http2.Framer, _ func(string) []byte) {
				for rest := 0x40000 - 100; rest > 0; rest -= min(rest, 16384) {
					_ = framer.WriteData(1, rest <= 16384, make([]byte, min(rest, 16384)))
				}
			})[len(preface):], rand.New(rand.NewPCG(1, 4)))
		},
		"the client resets it":  func(_ *nativeConn, wire *pieces) { wire.rest = [][]byte{resetFrame(1, http2.ErrCodeCancel)} },
		"the server ends it":    func(conn *nativeConn, _ *pieces) { _, _ = conn.Write(statusFrames(1, false, errors.New("x"))) },
		"the connection closes": func(conn *nativeConn, _ *pieces) { _ = conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			conn, wire, _ := native(t, whole, false, 1)
			_, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.True(t, holdsRoom(t, conn))
			end(conn, wire)
			_, err = io.ReadAll(conn)
			require.NoError(t, err)
			require.False(t, holdsRoom(t, conn))
		})
	}
}

// The budget is full when the message arrives, and the call ends before there is room.
func TestACallThatEndsWhileItWaitsForRoomGetsNone(t *testing.T) {
	whole := clientBytes(func(framer *http2.Framer, block func(string) []byte) {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("application/grpc"), EndHeaders: true})
		_ = framer.WriteData(1, false, append([]byte{0, 0, 0x04, 0, 0}, make([]byte, 100)...))
	})
	for name, end := range map[string]func(conn *nativeConn){
		"the server ends it":    func(conn *nativeConn) { _, _ = conn.Write(statusFrames(1, false, errors.New("x"))) },
		"the connection closes": func(conn *nativeConn) { _ = conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			conn, _, _ := native(t, whole, false, 1)
			budget := conn.config.Budget
			giveAll, ok := budget.TryTake(t.Context(), 1<<20-1)
			require.True(t, ok)
			read := make(chan error, 1)
			go func() {
				_, err := io.ReadAll(conn)
				read <- err
			}()
			require.Eventually(t, func() bool { // the last byte is not to be had while somebody is in line
				give, ok := budget.TryTake(t.Context(), 1)
				if ok {
					give()
				}
				return !ok
			}, 5*time.Second, time.Millisecond, "the message waits for room")
			end(conn)
			giveAll()
			require.NoError(t, <-read)
			require.False(t, holdsRoom(t, conn))
		})
	}
}

// Each case sends what it has, and then only a ping when the time is over.
func TestARequestMustArriveInTime(t *testing.T) {
	const unary, streams = "/unary", "/streams"
	part := append([]byte{0, 0, 4, 0, 0}, make([]byte, 100)...) // of 256 KiB
	whole := make([]byte, prefixBytes+100_000)
	copy(whole, []byte{0, 0, 1, 0x86, 0xa0})
	for name, c := range map[string]struct {
		path     string
		data     []byte
		ended    bool
		room     bool // before the time is over
		arrived  bool
		answered bool
	}{
		"part of the message":               {path: unary, data: part, room: true},
		"part of the prefix":                {path: unary, data: []byte{0, 0}},
		"the message without its end":       {path: unary, data: whole, room: true},
		"a short message without its end":   {path: unary, data: []byte{0, 0, 0, 0, 1, 9}},
		"the message and its end":           {path: unary, data: whole, ended: true, arrived: true},
		"a stream's message":                {path: streams, data: whole, arrived: true},
		"a stream's empty message":          {path: streams, data: make([]byte, prefixBytes), arrived: true},
		"part of a stream's message":        {path: streams, data: part, room: true},
		"part of a stream's second message": {path: streams, data: append(bytes.Clone(whole), part...), room: true},
		"part of a stream's third message":  {path: streams, data: append(make([]byte, 2*prefixBytes), part...), room: true},
		"after the stream's first answer":   {path: streams, data: part, room: true, answered: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				conn := newNativeConn(found{conn: server}, NativeConfig{
					MaxRequestBytes: 1 << 20, MaxHeaderBytes: 16384, ArrivalTimeout: time.Minute,
					ClientStreams: map[string]bool{streams: true}, Budget: forward.NewBudget(1<<20, telemetry.Discard()),
				}, func() {})
				toServer, toClient := make(chan []byte, 1), make(chan []byte, 1)
				readAll := func(from net.Conn, into chan<- []byte) {
					all, _ := io.ReadAll(from) // until the connection is closed
					into <- all
				}
				go readAll(conn, toServer)
				go readAll(client, toClient)
				send := func(write func(framer *http2.Framer, block func(string) []byte), from int) {
					_, err := client.Write(clientBytes(write)[from:])
					require.NoError(t, err)
				}
				send(func(framer *http2.Framer, _ func(string) []byte) {
					var block bytes.Buffer
					encoder := hpack.NewEncoder(&block)
					_ = encoder.WriteField(hpack.HeaderField{Name: ":path", Value: c.path})
					_ = encoder.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
					_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
					for data := c.data; len(data) > 0; data = data[min(len(data), 16384):] {
						_ = framer.WriteData(1, c.ended && len(data) <= 16384, data[:min(len(data), 16384)])
					}
				}, 0)
				if c.answered {
					synctest.Wait() // no server answers what it has not read
					answer(t, conn)
				}
				time.Sleep(time.Minute - 1)
				require.Equal(t, c.room, holdsRoom(t, conn))
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.False(t, holdsRoom(t, conn))
				send(func(framer *http2.Framer, _ func(string) []byte) { _ = framer.WritePing(false, [8]byte{1}) }, len(preface))
				require.NoError(t, client.Close())
				require.NoError(t, conn.Close())

				got := frames(t, (<-toServer)[len(preface):], hpack.NewDecoder(4096, nil))
				require.Equal(t, "PING", got[len(got)-1], "the connection goes on")
				want, wantAnswer := "RST_STREAM CANCEL", []string{"HEADERS 200 application/grpc 4", "RST_STREAM NO_ERROR"}
				switch {
				case c.arrived:
					want, wantAnswer = "DATA", nil
				case c.answered:
					wantAnswer = []string{"HEADERS 200", "HEADERS 4", "RST_STREAM NO_ERROR"}
				}
				require.Equal(t, want, got[len(got)-2])
				require.Equal(t, wantAnswer, frames(t, <-toClient, hpack.NewDecoder(4096, nil)))
			})
		})
	}
}

// A frame that has begun goes to the server as a whole before the reset.
func TestTheResetOfALateRequestWaitsForTheEndOfAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		conn := newNativeConn(found{conn: server}, NativeConfig{
			MaxRequestBytes: 1 << 20, MaxHeaderBytes: 16384, ArrivalTimeout: time.Minute,
			Budget: forward.NewBudget(1<<20, telemetry.Discard()),
		}, func() {})
		toServer := make(chan []byte, 1)
		go func() {
			all, _ := io.ReadAll(conn)
			toServer <- all
		}()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		sent := clientBytes(func(framer *http2.Framer, block func(string) []byte) {
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("application/grpc"), EndHeaders: true})
			_ = framer.WriteData(1, false, append([]byte{0, 0, 4, 0, 0}, make([]byte, 100)...))
			_ = framer.WriteData(1, false, make([]byte, 1000))
		})
		for _, part := range [][]byte{sent[:len(sent)-500], sent[len(sent)-500:]} {
			_, err := client.Write(part)
			require.NoError(t, err)
			time.Sleep(time.Hour)
		}
		require.NoError(t, client.Close())
		require.NoError(t, conn.Close())
		require.Equal(t, []string{"HEADERS application/grpc", "DATA", "DATA", "RST_STREAM CANCEL"},
			frames(t, (<-toServer)[len(preface):], hpack.NewDecoder(4096, nil)))
	})
}

func TestTheInspectionSurvivesAnyBytes(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 5))
		noise := make([]byte, random.IntN(4000))
		for i := range noise {
			noise[i] = byte(random.Uint32())
			if random.IntN(3) > 0 {
				noise[i] %= 10 // short frames of known types
			}
		}
		conn, _, _ := native(t, append([]byte(http2.ClientPreface), noise...), seed%2 == 0, seed)
		_, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

func FuzzClassify(f *testing.F) {
	f.Add(withHeaders("application/grpc"))
	f.Add([]byte("POST / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, read []byte) { _, _ = classify(read, 16384) })
}
