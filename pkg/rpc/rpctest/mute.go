// Package rpctest has clients that no library makes, for tests of servers.
package rpctest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// patience is how long a test waits for a server.
const patience = 30 * time.Second

// maxFrame is the longest frame that every HTTP/2 server takes.
const maxFrame = 16 << 10

// Mute is an HTTP/2 client that asks, gives no window for answers and reads nothing.
type Mute struct {
	Conn   net.Conn
	Framer *http2.Framer

	t       testing.TB
	next    uint32
	block   bytes.Buffer
	encoder *hpack.Encoder
}

// Connect opens a connection for the length of a test.
func Connect(t testing.TB, address string) *Mute {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	m := &Mute{t: t, Conn: conn, Framer: http2.NewFramer(conn, conn), next: 1}
	m.encoder = hpack.NewEncoder(&m.block)
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, m.Framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	return m
}

// Call makes a unary call, such as of "/test.Service/Method", and returns the number
// of its stream.
func (m *Mute) Call(method string, request []byte) uint32 {
	m.t.Helper()
	return m.call(method, len(request), request, true)
}

// Begin is Call with a request of which only the beginning is sent.
func (m *Mute) Begin(method string, length int, beginning []byte) uint32 {
	m.t.Helper()
	return m.call(method, length, beginning, false)
}

func (m *Mute) call(method string, length int, content []byte, end bool) uint32 {
	m.t.Helper()
	m.block.Reset()
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		require.NoError(m.t, m.encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}))
	}
	stream := m.next
	m.next += 2
	require.NoError(m.t, m.Framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: m.block.Bytes(), EndHeaders: true}))
	rest := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(length)), content...)
	for len(rest) > maxFrame {
		require.NoError(m.t, m.Framer.WriteData(stream, false, rest[:maxFrame]))
		rest = rest[maxFrame:]
	}
	require.NoError(m.t, m.Framer.WriteData(stream, end, rest))
	return stream
}

// Reset ends a call.
func (m *Mute) Reset(stream uint32) {
	m.t.Helper()
	require.NoError(m.t, m.Framer.WriteRSTStream(stream, http2.ErrCodeCancel))
}

// Allow gives a window to a call, and to the connection.
func (m *Mute) Allow(stream, bytes uint32) {
	m.t.Helper()
	require.NoError(m.t, m.Framer.WriteWindowUpdate(0, bytes))
	require.NoError(m.t, m.Framer.WriteWindowUpdate(stream, bytes))
}

// Discard reads from now on, to no purpose.
func (m *Mute) Discard() {
	go func() { _, _ = io.Copy(io.Discard, m.Conn) }() // until the connection is closed
}

// AwaitEnd reads until the server has closed the connection.
func (m *Mute) AwaitEnd() {
	m.t.Helper()
	require.NoError(m.t, m.Conn.SetReadDeadline(time.Now().Add(patience)))
	_, err := io.Copy(io.Discard, m.Conn)
	require.NotErrorIs(m.t, err, os.ErrDeadlineExceeded, "the connection is open") // a reset is an end, too
}
