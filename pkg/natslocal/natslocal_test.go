package natslocal_test

import (
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, options natslocal.Options) *natslocal.Server {
	t.Helper()
	s, err := natslocal.Start(options)
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	return s
}

func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	conn, err := nats.Connect(url, nats.ReconnectWait(10*time.Millisecond), nats.MaxReconnects(-1),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(); <-closed })
	return conn
}

func TestMessageArrives(t *testing.T) {
	s := start(t, natslocal.Options{})
	conn := connect(t, s.URL())
	sub, err := conn.SubscribeSync("a")
	require.NoError(t, err)
	require.NoError(t, conn.Publish("a", []byte("hello")))
	got, err := sub.NextMsg(5 * time.Second)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got.Data))
}

func TestRestartKeepsThePort(t *testing.T) {
	s := start(t, natslocal.Options{})
	url := s.URL()
	conn := connect(t, url)
	s.Stop()
	_, err := nats.Connect(url)
	require.Error(t, err, "a stopped server still takes connections")
	require.NoError(t, s.Restart())
	require.Equal(t, url, s.URL())
	require.Eventually(t, conn.IsConnected, 5*time.Second, 5*time.Millisecond, "the client did not reconnect")
	s.Stop()
	s.Stop() // harmless
}

func TestMaxPayloadAtAndPastTheBound(t *testing.T) {
	s := start(t, natslocal.Options{MaxPayload: 100})
	conn := connect(t, s.URL())
	require.EqualValues(t, 100, conn.MaxPayload())
	require.NoError(t, conn.Publish("a", make([]byte, 100)))
	require.ErrorIs(t, conn.Publish("a", make([]byte, 101)), nats.ErrMaxPayload)
}

func TestTakenPortIsAClearError(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	_, err = natslocal.Start(natslocal.Options{Port: listener.Addr().(*net.TCPAddr).Port})
	require.ErrorIs(t, err, natslocal.ErrPortTaken)
	require.ErrorContains(t, err, listener.Addr().String())
}
