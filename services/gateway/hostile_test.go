package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// attack is what a hostile client sends on one connection.
type attack func(conn net.Conn)

// Proves I9.
func TestHostileInputHurtsNobody(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_HEADER_TIMEOUT": "500ms"})
	good := nativeCaller(f.conn)
	_, err := good.query(t.Context(), &backendv1.QueryRequest{})
	require.NoError(t, err)

	for name, attacks := range map[string]struct {
		times     int
		thrownOut bool // by the gateway; else the client goes away
		attack    attack
	}{
		"random bytes":               {50, true, randomBytes(nil)},
		"random bytes after preface": {50, true, randomBytes([]byte(http2.ClientPreface))},
		"huge HTTP/1 headers":        {5, true, writes(hugeHeaders())},
		"half a preface":             {50, true, writes([]byte(http2.ClientPreface)[:10])},
		"half a request":             {50, true, writes([]byte("POST / HTTP/1.1\r\nHost: a\r\nX-"))},
		"nothing":                    {50, true, writes(nil)},
		"invalid frames":             {10, true, invalidFrames},
		"reset streams, native":      {1, false, resetStreams("application/grpc")},
		"reset streams, gRPC-Web":    {1, false, resetStreams("application/grpc-web+proto")},
		"huge HTTP/2 headers":        {5, false, hugeHTTP2Headers("application/grpc")},
		"huge web headers":           {5, false, hugeHTTP2Headers("application/grpc-web")},
		"long messages, abandoned":   {20, false, abandonedMessage},
		"invalid UTF-8":              {5, false, writes(invalidUTF8())},
	} {
		t.Run(name, func(t *testing.T) {
			goroutines, heap := settled(t, 0)
			var running sync.WaitGroup
			for range attacks.times {
				running.Go(func() { run(t, f, attacks.attack, attacks.thrownOut) })
			}
			// Other clients are served all the time.
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				_, err := good.query(ctx, &backendv1.QueryRequest{})
				cancel()
				require.NoError(t, err)
			}
			running.Wait()
			_, after := settled(t, goroutines)
			require.Less(t, after, heap+16<<20, "the heap grew from %d to %d bytes", heap, after)
		})
	}
}

// settled waits until no more goroutines than wanted are left (0: any number),
// and returns their number and the bytes of the heap.
func settled(t *testing.T, wanted int) (goroutines int, heap uint64) {
	t.Helper()
	if wanted > 0 {
		begun := time.Now()
		for runtime.NumGoroutine() > wanted+2 {
			if time.Since(begun) > soon {
				stacks := make([]byte, 1<<20)
				require.Fail(t, "goroutines are left", "%d, expected %d:\n%s", runtime.NumGoroutine(), wanted, stacks[:runtime.Stack(stacks, true)])
			}
			time.Sleep(20 * time.Millisecond) // polled with a deadline
		}
	}
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return runtime.NumGoroutine(), stats.HeapAlloc
}

func run(t *testing.T, f *front, attack attack, thrownOut bool) {
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.address)
	if err != nil {
		t.Errorf("connect: %v", err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(soon))
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn)
		ended <- err
	}()
	attack(conn)
	if !thrownOut {
		conn.Close()
		<-ended
		return
	}
	if err := <-ended; errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still open")
	}
}

func writes(bytes []byte) attack {
	return func(conn net.Conn) { _, _ = conn.Write(bytes) }
}

func randomBytes(first []byte) attack {
	return func(conn net.Conn) {
		random := rand.New(rand.NewPCG(1, rand.Uint64()))
		noise := make([]byte, 1+random.IntN(8192))
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		_, _ = conn.Write(append(bytes.Clone(first), noise...))
	}
}

func hugeHeaders() []byte {
	return []byte("POST /xmtp.backend.v1.QueryService/Query HTTP/1.1\r\nHost: a\r\nX-Huge: " + strings.Repeat("x", 1<<20) + "\r\n\r\n")
}

func invalidUTF8() []byte {
	body := "{\"queries\":\"\xff\xfe\"}"
	return fmt.Appendf(nil, "POST /xmtp.backend.v1.QueryService/Query%%ff HTTP/1.1\r\nHost: a\r\nX-Request-Id: \xff\xfe\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// speaks begins an HTTP/2 connection.
func speaks(conn net.Conn) (framer *http2.Framer, block func(contentType string, more ...hpack.HeaderField) []byte) {
	_, _ = conn.Write([]byte(http2.ClientPreface))
	framer = http2.NewFramer(conn, nil)
	_ = framer.WriteSettings()
	var encoded bytes.Buffer
	encoder := hpack.NewEncoder(&encoded)
	return framer, func(contentType string, more ...hpack.HeaderField) []byte {
		encoded.Reset()
		for _, field := range append([]hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/xmtp.backend.v1.QueryService/Query"},
			{Name: ":authority", Value: "a"}, {Name: "content-type", Value: contentType}, {Name: "te", Value: "trailers"},
		}, more...) {
			_ = encoder.WriteField(field)
		}
		return bytes.Clone(encoded.Bytes())
	}
}

func resetStreams(contentType string) attack {
	return func(conn net.Conn) {
		framer, block := speaks(conn)
		for i := range uint32(10_000) {
			if framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block(contentType), EndHeaders: true}) != nil {
				return // thrown out
			}
			if framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
				return
			}
		}
	}
}

func hugeHTTP2Headers(contentType string) attack {
	return func(conn net.Conn) {
		framer, block := speaks(conn)
		huge := block(contentType, hpack.HeaderField{Name: "x-huge", Value: strings.Repeat("~", 300<<10)})
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: huge[:16384]})
		for rest := huge[16384:]; len(rest) > 0; {
			n := min(16384, len(rest))
			if framer.WriteContinuation(1, n == len(rest), rest[:n]) != nil {
				return
			}
			rest = rest[n:]
		}
	}
}

// abandonedMessage promises much, sends some of it and goes away.
func abandonedMessage(conn net.Conn) {
	framer, block := speaks(conn)
	for id := uint32(1); id < 20; id += 2 {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block("application/grpc"), EndHeaders: true})
		_ = framer.WriteData(id, false, append([]byte{0, 0, 0xff, 0xff, 0xff}, make([]byte, 4096)...))
	}
	_ = framer.WriteData(1, true, nil)
}

func invalidFrames(conn net.Conn) {
	framer, block := speaks(conn)
	framer.AllowIllegalWrites = true
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("application/grpc"), EndHeaders: true})
	for _, frame := range [][]byte{
		{0, 0, 1, 0, 8, 0, 0, 0, 1, 255},                         // padding longer than the payload
		{0, 0, 4, 8, 0, 0, 0, 0, 1, 0, 0, 0, 0},                  // a window of nothing
		{0, 0, 1, 0, 0, 0, 0, 0, 0, 0},                           // data on no stream
		{0, 0, 3, 3, 0, 0, 0, 0, 1, 0, 0, 0},                     // a reset of three bytes
		{0, 0, 0, 9, 4, 0, 0, 0, 1},                              // a continuation of nothing
		{0, 0, 2, 1, 4, 0, 0, 0, 3, 0x80, 0xff},                  // headers that cannot be decoded
		{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6},   // far too long
		{0, 0, 0, 1, 0x2c, 0, 0, 0, 5},                           // padded headers with priority, without either
		{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 255}, // a window that is too large
	} {
		if _, err := conn.Write(frame); err != nil {
			return
		}
	}
}
