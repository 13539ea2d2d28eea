package notice_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal/natstest"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/metertest"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

const within = 20 * time.Second

func settings(t *testing.T, url string) notice.Config {
	t.Helper()
	cfg, err := config.LoadFrom[notice.Config](map[string]string{
		"XMTP_NATS_URL": url, "XMTP_IDENTIFIER": "org.example.test",
		"XMTP_NATS_RECONNECT_WAIT": "20ms", "XMTP_NATS_CONNECT_TIMEOUT": "500ms", "XMTP_NATS_WRITE_TIMEOUT": "300ms",
	})
	require.NoError(t, err)
	return cfg
}

func bus(t *testing.T, options natslocal.Options) *natslocal.Server {
	t.Helper()
	server, err := natslocal.Start(options)
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return server
}

// ear collects what a receiver hears.
type ear struct {
	mu    sync.Mutex
	heard []notice.Notice
	up    []bool
}

func (e *ear) notices() []notice.Notice {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]notice.Notice(nil), e.heard...)
}

func (e *ear) states() []bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]bool(nil), e.up...)
}

// run runs until the end of the test.
func run(t *testing.T, what func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- what(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(within):
			t.Fatal("Run did not return")
		}
	})
}

func listen(t *testing.T, cfg notice.Config, m *metertest.Meter) *ear {
	t.Helper()
	e := &ear{}
	receiver := notice.NewReceiver(cfg, slog.New(slog.DiscardHandler), m.Metrics, notice.Listener{
		Notice: func(n notice.Notice) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.heard = append(e.heard, n)
		},
		Connected: func(up bool) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.up = append(e.up, up)
		},
	})
	run(t, receiver.Run)
	return e
}

// heardBy waits for the receiver's connection.
func heardBy(t *testing.T, cfg notice.Config, m *metertest.Meter) *ear {
	t.Helper()
	e := listen(t, cfg, m)
	eventually(t, func() bool { return len(e.states()) > 0 }, "the receiver connects")
	return e
}

func sender(t *testing.T, cfg notice.Config, m *metertest.Meter) *notice.Sender {
	t.Helper()
	s := notice.NewSender(cfg, slog.New(slog.DiscardHandler), m.Metrics)
	run(t, s.Run)
	return s
}

// send is Queue and Wake.
func send(t *testing.T, s *notice.Sender, stored ...notice.Stored) {
	t.Helper()
	s.Queue(t.Context(), stored)
	s.Wake()
}

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, within, 5*time.Millisecond, what)
}

func group(n int) topic.Topic {
	return topic.Topic("\x00" + strings.Repeat("g", 14) + string([]byte{byte(n >> 8), byte(n)}))
}

func stored(n, size int) notice.Stored {
	payload := bytes.Repeat([]byte{byte(n)}, size)
	return notice.Stored{
		Meta: envelope.Meta{
			Topic: group(n), SequenceID: topic.SequenceID(n + 10), ServerNS: 5, MessageHash: envelope.HashOf(payload),
		},
		Payload:  payload,
		Previous: topic.SequenceID(n),
		Lineage:  notice.Lineage{SystemIdentifier: -7, Timeline: 3},
		Trace:    notice.Trace{1, 2, 3},
	}
}

// sendUntilHeard covers the time in which the sender is not connected yet.
func sendUntilHeard(t *testing.T, s *notice.Sender, e *ear, n int) {
	t.Helper()
	eventually(t, func() bool {
		send(t, s, stored(n, 10))
		for _, heard := range e.notices() {
			if heard.Topic == group(n) {
				return true
			}
		}
		return false
	}, "a notice arrives")
}

func TestNoticesArriveWholeAndInOrderOnEveryShard(t *testing.T) {
	server := bus(t, natslocal.Options{})
	m, cfg := metertest.New(t), settings(t, server.URL())
	e := heardBy(t, cfg, m)
	s := sender(t, cfg, m)
	sendUntilHeard(t, s, e, 9999)
	const count = 2000 // all shards, for practical purposes
	want := make([]notice.Stored, count)
	for i := range want {
		want[i] = stored(i, 100)
	}
	send(t, s, want...)
	var heard []notice.Notice
	eventually(t, func() bool {
		heard = slices.DeleteFunc(e.notices(), func(n notice.Notice) bool { return n.Topic == group(9999) }) // one may come late
		return len(heard) >= count
	}, "all notices arrive")
	require.Len(t, heard, count)
	for i := range want {
		require.Equal(t, notice.Notice{
			Topic: want[i].Meta.Topic, SequenceID: want[i].Meta.SequenceID, Previous: want[i].Previous,
			Lineage: want[i].Lineage, Trace: want[i].Trace,
			Envelope: envelope.AppendServer(nil, &want[i].Meta, want[i].Payload),
		}, heard[i])
	}
}

func TestLongEnvelopesAreLeftOut(t *testing.T) {
	server := bus(t, natslocal.Options{})
	m, cfg := metertest.New(t), settings(t, server.URL())
	at := stored(1, 500)
	cfg.InlineBytes = envelope.ServerSize(&at.Meta, at.Payload)
	e := heardBy(t, cfg, m)
	s := sender(t, cfg, m)
	sendUntilHeard(t, s, e, 9999)
	send(t, s, at, stored(2, 501))
	eventually(t, func() bool { heard := e.notices(); return heard[len(heard)-1].Topic == group(2) }, "both arrive")
	heard := e.notices()
	require.Len(t, heard[len(heard)-2].Envelope, cfg.InlineBytes)
	require.Empty(t, heard[len(heard)-1].Envelope)
}

func TestABusThatTakesOnlyShortMessagesGetsNoEnvelopes(t *testing.T) {
	server := bus(t, natslocal.Options{MaxPayload: 1000})
	m, cfg := metertest.New(t), settings(t, server.URL())
	e := heardBy(t, cfg, m)
	s := sender(t, cfg, m)
	sendUntilHeard(t, s, e, 9999)
	send(t, s, stored(1, 10), stored(2, 5000))
	eventually(t, func() bool { heard := e.notices(); return heard[len(heard)-1].Topic == group(2) }, "both arrive")
	for _, heard := range e.notices() {
		if heard.Topic != group(9999) {
			require.Empty(t, heard.Envelope)
		}
	}
}

func TestABusThatTakesNoNoticeIsCounted(t *testing.T) {
	server := bus(t, natslocal.Options{MaxPayload: 20})
	m, cfg := metertest.New(t), settings(t, server.URL())
	s := sender(t, cfg, m)
	eventually(t, func() bool {
		send(t, s, stored(1, 10))
		return m.Count("xmtp_notices_dropped", attribute.String("reason", "too_large")) > 0
	}, "the refusal is counted")
	require.Zero(t, m.Count("xmtp_notices_sent"))
}

func TestIdentifiersThatDifferInAnyCharacterDoNotMeet(t *testing.T) {
	server := bus(t, natslocal.Options{})
	m := metertest.New(t)
	identifiers := []string{"a", "a.b", "a*", ">", "a=2Eb", "ä", "A", strings.Repeat(".", 256)}
	ears, senders := map[string]*ear{}, map[string]*notice.Sender{}
	for _, id := range identifiers {
		cfg := settings(t, server.URL())
		cfg.Identifier = id
		require.NoError(t, cfg.Validate())
		ears[id], senders[id] = heardBy(t, cfg, m), sender(t, cfg, m)
	}
	for i, id := range identifiers {
		sendUntilHeard(t, senders[id], ears[id], i)
	}
	for i, id := range identifiers {
		for _, heard := range ears[id].notices() {
			require.Equal(t, group(i), heard.Topic)
		}
	}
}

func TestTheBusMayComeLateAndGoAndComeBack(t *testing.T) {
	server := bus(t, natslocal.Options{})
	server.Stop()
	m, cfg := metertest.New(t), settings(t, server.URL())
	e := listen(t, cfg, m)
	s := sender(t, cfg, m)
	eventually(t, func() bool {
		send(t, s, stored(0, 10))
		return m.Count("xmtp_notices_dropped", attribute.String("reason", "disconnected")) > 0
	}, "a notice is dropped while the bus is away")
	require.NoError(t, server.Restart())
	sendUntilHeard(t, s, e, 1)
	reported := func(states ...bool) {
		t.Helper()
		eventually(t, func() bool { return slices.Equal(states, e.states()) }, fmt.Sprint("the states are ", states))
	}
	reported(true)
	server.Stop()
	reported(true, false)
	require.NoError(t, server.Restart())
	sendUntilHeard(t, s, e, 2)
	reported(true, false, true)
}

// A bus that is slow to read: what is sent between a report of a connection and
// the subscription would be missed though the listener relies on it.
func TestAConnectionIsReportedOnceTheBusHasTheSubscription(t *testing.T) {
	listener, err := freeport.Listen()
	require.NoError(t, err)
	var has atomic.Bool
	var current atomic.Pointer[net.Conn]
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			current.Store(&conn)
			_, _ = conn.Write([]byte(`INFO {"server_id":"slow","proto":1,"max_payload":1048576}` + "\r\n"))
			first := true
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				switch verb, _, _ := strings.Cut(lines.Text(), " "); verb {
				case "PING":
					_, _ = conn.Write([]byte("PONG\r\n"))
					if first { // the client is connected now
						first = false
						time.Sleep(50 * time.Millisecond) // for a report that comes too early
					}
				case "SUB":
					has.Store(true)
				}
			}
			has.Store(false)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	type report struct{ up, has bool }
	reports := make(chan report, 10)
	receiver := notice.NewReceiver(settings(t, "nats://"+listener.Addr().String()), slog.New(slog.DiscardHandler), metertest.New(t).Metrics,
		notice.Listener{Notice: func(notice.Notice) {}, Connected: func(up bool) { reports <- report{up, has.Load()} }})
	run(t, receiver.Run)
	next := func() report {
		select {
		case r := <-reports:
			return r
		case <-time.After(within):
			t.Fatal("no report")
			panic("unreachable")
		}
	}
	require.Equal(t, report{up: true, has: true}, next())
	require.NoError(t, (*current.Load()).Close())
	require.False(t, next().up)
	require.Equal(t, report{up: true, has: true}, next(), "after a reconnect, too")
}

// refusing is a bus that lets nobody in.
type refusing struct{ times atomic.Int32 }

func (r *refusing) Check(server.ClientAuthentication) bool {
	r.times.Add(1)
	return false
}

// Credentials that the bus refuses may be right a while later.
func TestARefusedLoginIsTriedAgain(t *testing.T) {
	port, err := freeport.Pick()
	require.NoError(t, err)
	guard := &refusing{}
	closed, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoLog: true, NoSigs: true, CustomClientAuthentication: guard})
	require.NoError(t, err)
	closed.Start()
	stop := sync.OnceFunc(func() {
		closed.Shutdown()
		closed.WaitForShutdown()
	})
	t.Cleanup(stop)
	log := logtest.New()
	m, cfg := metertest.New(t), settings(t, fmt.Sprintf("nats://somebody:hunter2@127.0.0.1:%d", port))
	e := listen(t, cfg, m)
	s := notice.NewSender(cfg, log.Logger, m.Metrics)
	run(t, s.Run)
	eventually(t, func() bool { return guard.times.Load() > 6 }, "both try more often than twice")
	eventually(t, func() bool { return strings.Contains(log.String(), "cannot be reached") }, "it is logged")
	stop()
	bus(t, natslocal.Options{Port: port})
	sendUntilHeard(t, s, e, 1)
	require.Equal(t, 1, strings.Count(log.String(), "cannot be reached"), "once, however often it is tried")
	require.NotContains(t, log.String(), "hunter2")
}

func TestAStoppedBusDelaysNoCaller(t *testing.T) {
	url, process := natstest.Start(t)
	m, cfg := metertest.New(t), settings(t, url)
	cfg.QueueBytes = 1 << 20
	e := heardBy(t, cfg, m)
	s := sender(t, cfg, m)
	sendUntilHeard(t, s, e, 9999)
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	// Far more than sockets and queue hold.
	var slowest time.Duration
	for range 300 {
		begun := time.Now()
		send(t, s, stored(3, 60_000), stored(4, 60_000))
		slowest = max(slowest, time.Since(begun))
	}
	require.Less(t, slowest, within, "Queue or Wake waited for the bus")
	eventually(t, func() bool { return m.Count("xmtp_notices_dropped", attribute.String("reason", "queue_full")) > 0 }, "the newest are dropped")
	require.NoError(t, process.Signal(syscall.SIGCONT))
	sendUntilHeard(t, s, e, 5)
}

func TestAKilledBusDelaysNoCaller(t *testing.T) {
	url, process := natstest.Start(t)
	m, cfg := metertest.New(t), settings(t, url)
	e := heardBy(t, cfg, m)
	s := sender(t, cfg, m)
	sendUntilHeard(t, s, e, 9999)
	require.NoError(t, process.Kill())
	eventually(t, func() bool {
		send(t, s, stored(3, 10))
		return m.Count("xmtp_notices_dropped", attribute.String("reason", "disconnected")) > 0
	}, "notices are dropped and counted")
}

func TestWhatIsQueuedAtTheEndIsSent(t *testing.T) {
	server := bus(t, natslocal.Options{})
	m, cfg := metertest.New(t), settings(t, server.URL())
	e := heardBy(t, cfg, m)
	s := notice.NewSender(cfg, slog.New(slog.DiscardHandler), m.Metrics)
	send(t, s, stored(1, 10), stored(2, 10))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Run(ctx))
	eventually(t, func() bool { return len(e.notices()) == 2 }, "both arrive")
}

func TestStrangeMessagesAreCountedAndLeftOut(t *testing.T) {
	server := bus(t, natslocal.Options{})
	m, cfg := metertest.New(t), settings(t, server.URL())
	e := heardBy(t, cfg, m)
	conn, err := nats.Connect(server.URL())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.Publish("xmtp.org=2Eexample=2Etest.notice.7", []byte("no notice")))
	require.NoError(t, conn.Flush())
	eventually(t, func() bool { return m.Count("xmtp_notices_received", attribute.String("outcome", "malformed")) == 1 }, "it is counted")
	require.Empty(t, e.notices())
}
