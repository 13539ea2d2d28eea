package front

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clientBytes is what a client sends: the preface, and what write adds.
func clientBytes(write func(framer *http2.Framer, block func(contentType string) []byte)) []byte {
	var sent bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&sent, nil)
	write(framer, func(contentType string) []byte { return headerBlock("content-type", contentType) })
	return sent.Bytes()
}

func headerBlock(name, value string) []byte {
	var encoded bytes.Buffer
	encoder := hpack.NewEncoder(&encoded)
	_ = encoder.WriteField(hpack.HeaderField{Name: ":method", Value: "POST"})
	if value != "" {
		_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
	return encoded.Bytes()
}

func withHeaders(contentType string) []byte {
	return clientBytes(func(framer *http2.Framer, block func(string) []byte) {
		_ = framer.WriteSettings()
		_ = framer.WriteWindowUpdate(0, 1000)
		_ = framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: 1, BlockFragment: block(contentType), EndHeaders: true, PadLength: 3,
			Priority: http2.PriorityParam{Weight: 7},
		})
	})
}

func TestTheFirstHeadersDecide(t *testing.T) {
	for contentType, native := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc;charset=utf-8": true,
		"application/grpc-web": false, "application/grpc-web+proto": false, "application/grpc-web-text": false,
		"application/json": false, "application/connect+proto": false, "": false,
	} {
		sent := withHeaders(contentType)
		var grows look
		for n := range sent { // until the last byte, nothing tells
			var whole look
			require.False(t, whole.next(sent[:n]), "%d of %d bytes", n, len(sent))
			require.False(t, grows.next(sent[:n]), "%d of %d bytes", n, len(sent))
		}
		require.True(t, grows.next(sent))
		require.Equal(t, native, grows.native, contentType)
	}
	for _, other := range []string{"GET / HTTP/1.1\r\n", "PRI * HTTP/1.1", "\x16\x03\x01", "P OST"} {
		var l look
		require.True(t, l.next([]byte(other)))
		require.False(t, l.native)
	}
}

func TestHeadersMayBeInSeveralFrames(t *testing.T) {
	block := headerBlock("content-type", "application/grpc")
	sent := clientBytes(func(framer *http2.Framer, _ func(string) []byte) {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:3]})
		for i := range block[3:] {
			_ = framer.WriteContinuation(1, i == len(block)-4, block[3+i:4+i])
		}
	})
	before := bytes.Clone(sent)
	var l look
	require.True(t, l.next(sent))
	require.True(t, l.native)
	require.Equal(t, before, sent, "what the server gets is left as it is")
}

// Before a request is found, nobody makes us read much, or look often.
func TestTheSearchForTheFirstRequestIsBounded(t *testing.T) {
	empty := func(framer *http2.Framer) { _ = framer.WriteContinuation(1, false, nil) }
	window := func(framer *http2.Framer) { _ = framer.WriteWindowUpdate(0, 1) }
	for name, c := range map[string]struct {
		first func(framer *http2.Framer)
		frame func(framer *http2.Framer)
		more  int // frames
		told  bool
	}{
		"frames, at the limit":             {window, window, maxPeekFrames - 1, false},
		"frames, one past it":              {window, window, maxPeekFrames, true},
		"empty continuations, at":          {func(f *http2.Framer) { _ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1}) }, empty, maxPeekFrames - 1, false},
		"empty continuations, one past it": {func(f *http2.Framer) { _ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1}) }, empty, maxPeekFrames, true},
	} {
		t.Run(name, func(t *testing.T) {
			var l look
			told := l.next(clientBytes(func(framer *http2.Framer, _ func(string) []byte) {
				c.first(framer)
				for range c.more {
					c.frame(framer)
				}
			}))
			require.Equal(t, c.told, told)
			require.False(t, l.native)
		})
	}
	// Each byte is looked at once, however many reads bring it.
	sent := clientBytes(func(framer *http2.Framer, _ func(string) []byte) {
		for range maxPeekFrames - 1 {
			_ = framer.WriteRawFrame(0xf0, 0, 0, make([]byte, 900))
		}
	})
	var l look
	for n := range sent {
		require.False(t, l.next(sent[:n]))
	}
	require.Equal(t, maxPeekFrames-2, l.frames)
}

// pieces is a connection whose reads come in given pieces.
type pieces struct {
	net.Conn

	rest [][]byte
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

// frames reads what a framer makes of the bytes, in short.
func frames(t *testing.T, encoded []byte) []string {
	t.Helper()
	framer := http2.NewFramer(io.Discard, bytes.NewReader(encoded))
	var got []string
	for {
		frame, err := framer.ReadFrame()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		got = append(got, frame.Header().Type.String())
	}
}

func TestTheServerGetsEverythingButTheAcknowledgementOfOurSettings(t *testing.T) {
	whole := clientBytes(func(framer *http2.Framer, block func(string) []byte) {
		_ = framer.WriteSettings()
		_ = framer.WriteSettingsAck()
		_ = framer.WriteSettingsAck()
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("application/grpc"), EndHeaders: true})
		_ = framer.WriteData(1, true, make([]byte, 10_000))
	})
	for seed := range uint64(30) {
		for _, size := range []int{0, nativeBuffer} {
			parts := cut(whole, rand.New(rand.NewPCG(seed, 2)))
			got, err := io.ReadAll(newReplayConn(&found{conn: &pieces{rest: parts[1:]}, read: parts[0]}, size))
			require.NoError(t, err)
			require.Equal(t, whole, got, "seed %d", seed)

			parts = cut(whole, rand.New(rand.NewPCG(seed, 2)))
			conn := newReplayConn(&found{conn: &pieces{rest: parts[1:]}, read: parts[0], settingsSent: true}, size)
			got, err = io.ReadAll(conn)
			require.NoError(t, err)
			require.Equal(t, []string{"SETTINGS", "SETTINGS", "HEADERS", "DATA"}, frames(t, got[len(preface):]), "seed %d", seed)
			require.Nil(t, conn.replay, "nothing is kept of what was looked at")
			require.Nil(t, conn.ack)
		}
	}
}

func splitter(t *testing.T, config Config) *Splitter {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	config.Budgets = caller.Budgets{Bodies: budget.New(1<<20, 0), Answers: budget.New(1<<20, 0)}
	config.MaxConnections = max(config.MaxConnections, 1)
	return New(config, listener, slog.New(slog.DiscardHandler))
}

// The first headers may come in pieces as long as the header timeout says.
func TestSlowHeadersHaveTheHeaderTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		pause time.Duration
		found bool
	}{
		"in time":  {8 * time.Second, true},
		"too late": {10*time.Second + 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := splitter(t, Config{HeaderTimeout: 10 * time.Second})
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				defer client.Close()
				go func() { _, _ = io.Copy(io.Discard, client) }()
				sent := withHeaders("application/grpc")
				go func() {
					_, _ = client.Write(sent[:len(sent)-10])
					time.Sleep(c.pause)
					_, _ = client.Write(sent[len(sent)-10:])
				}()
				found, err := s.classify(server, false)
				require.NoError(t, server.Close())
				if !c.found {
					require.Error(t, err)
					time.Sleep(c.pause)
					return
				}
				require.NoError(t, err)
				require.True(t, found.native)
				require.Equal(t, sent, found.read)
			})
		})
	}
}

// A browser connects ahead of its first request, and so does a native client. Only
// the browser could have spoken HTTP/1.1.
func TestASilentConnectionGoesToWhoServesItsClient(t *testing.T) {
	for _, offersHTTP1 := range []bool{false, true} {
		s := splitter(t, Config{HeaderTimeout: 10 * time.Second})
		synctest.Test(t, func(t *testing.T) {
			client, server := net.Pipe()
			defer client.Close()
			go func() { _, _ = io.Copy(io.Discard, client) }()
			go func() {
				_, _ = client.Write(clientBytes(func(framer *http2.Framer, _ func(string) []byte) { _ = framer.WriteSettings() }))
			}()
			found, err := s.classify(server, offersHTTP1)
			require.NoError(t, err)
			require.Equal(t, !offersHTTP1, found.native)
			require.NoError(t, server.Close())
		})
	}
}

func TestAnAddressHasAShareOfTheConnections(t *testing.T) {
	for _, c := range []struct {
		address, other string
		same           bool
	}{
		{"192.0.2.1:1", "192.0.2.1:2", true},
		{"192.0.2.1:1", "192.0.2.2:1", false},
		{"192.0.2.1:1", "[::ffff:192.0.2.1]:1", true},
		{"[2001:db8::1]:1", "[2001:db8::ffff:1]:1", true},
		{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		{"[fe80::1%eth0]:1", "[fe80::2%eth1]:1", true},
	} {
		require.Equal(t, c.same, addressOf(text(c.address)) == addressOf(text(c.other)), "%s and %s", c.address, c.other)
	}

	s := splitter(t, Config{MaxConnections: 10, MaxPerAddress: 2})
	from := func(address string) (*conn, bool) {
		s.slots <- struct{}{}
		c, ok := s.begin(addressed{Conn: &pieces{}, address: text(address)})
		if !ok {
			<-s.slots
		}
		return c, ok
	}
	first, ok := from("192.0.2.1:1")
	require.True(t, ok)
	_, ok = from("192.0.2.1:2")
	require.True(t, ok)
	_, ok = from("192.0.2.1:3")
	require.False(t, ok)
	_, ok = from("192.0.2.2:1")
	require.True(t, ok)
	require.NoError(t, first.Close())
	require.NoError(t, first.Close()) // as servers do
	_, ok = from("192.0.2.1:4")
	require.True(t, ok)
	require.Len(t, s.slots, 3)
}

type text string

func (text) Network() string  { return "tcp" }
func (a text) String() string { return string(a) }

type addressed struct {
	net.Conn

	address net.Addr
}

func (c addressed) RemoteAddr() net.Addr { return c.address }
func (addressed) Close() error           { return nil }

func FuzzLook(f *testing.F) {
	f.Add(withHeaders("application/grpc"))
	f.Add([]byte("POST / HTTP/1.1\r\n\r\n"))
	f.Add([]byte(http2.ClientPreface + strings.Repeat("\x00\x00\x01\x09\x00\x00\x00\x00\x01x", 3)))
	f.Fuzz(func(t *testing.T, read []byte) {
		var whole, grows look
		told := whole.next(read)
		for n := range read {
			if grows.next(read[:n]) {
				require.True(t, told)
				return
			}
		}
		require.Equal(t, told, grows.next(read))
		require.Equal(t, whole.native, grows.native)
	})
}
