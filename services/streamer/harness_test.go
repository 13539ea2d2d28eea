package streamer_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/streamer"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

// within bounds every wait of these tests.
const within = 30 * time.Second

const identifier = "org.example.test"

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, config.Secret(url))
	return err
}

// role is a streamer under test with everything around it.
type role struct {
	t       testing.TB
	address string
	client  backendv1.SubscriptionServiceClient
	conn    *grpc.ClientConn
	bus     *natslocal.Server
	writer  *writer
	stop    func()
}

type option func(*streamer.Config, *streamer.Deps)

func newBus(t testing.TB) *natslocal.Server {
	t.Helper()
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	return bus
}

// start runs a streamer on a database of the test's own, served by the primary,
// and an own bus.
func start(t testing.TB, options ...option) *role {
	t.Helper()
	url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	return startOn(t, url, url, newBus(t), options...)
}

// startOn runs a streamer that reads from one server and a writer on another.
func startOn(t testing.TB, readURL, writeURL string, bus *natslocal.Server, options ...option) *role {
	t.Helper()
	r := &role{t: t, bus: bus, writer: newWriter(t, writeURL, bus.URL())}
	r.run(readURL, options...)
	return r
}

func (r *role) run(readURL string, options ...option) {
	r.begin(readURL, options...)
	r.waitServing()
}

func (r *role) begin(readURL string, options ...option) {
	t := r.t
	listener, err := freeport.Listen()
	require.NoError(t, err)
	cfg, err := config.LoadFrom[streamer.Config](map[string]string{
		"XMTP_PRIMARY_URL": readURL, "XMTP_NATS_URL": r.bus.URL(), "XMTP_IDENTIFIER": identifier,
	})
	require.NoError(t, err)
	deps := streamer.Deps{Listener: listener, Logger: slog.New(slog.DiscardHandler), Metrics: telemetry.Discard()}
	for _, o := range options {
		o(&cfg, &deps)
	}
	role, err := streamer.New(cfg, deps)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- role.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(r.stop)
	r.address = listener.Addr().String()
	r.conn = dial(t, r.address)
	r.client = backendv1.NewSubscriptionServiceClient(r.conn)
}

func dial(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// waitServing returns when a stream can be opened.
func (r *role) waitServing() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		stream, err := r.client.Subscribe(ctx)
		if err != nil {
			return false
		}
		_, err = stream.Recv()
		return err == nil
	}, within, 10*time.Millisecond, "no stream could be opened")
}

// stored is an envelope in the table.
type stored struct {
	topic    topic.Topic
	id       topic.SequenceID
	previous topic.SequenceID
	meta     envelope.Meta
	payload  []byte
}

// writer stores envelopes as a publisher does and announces them, or not.
type writer struct {
	t       testing.TB
	db      *pgxpool.Pool
	bus     *nats.Conn
	lineage notice.Lineage
}

func newWriter(t testing.TB, url, bus string) *writer {
	t.Helper()
	w := &writer{t: t}
	var err error
	w.db, err = pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(w.db.Close)
	w.bus, err = nats.Connect(bus, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1))
	require.NoError(t, err)
	t.Cleanup(w.bus.Close)
	pool, err := store.OpenInstance(config.Secret(url), store.PoolConfig{MaxConns: 1, ConnectTimeout: within, AcquireTimeout: within, StatementTimeout: within})
	require.NoError(t, err)
	defer pool.Close()
	base, err := pool.Pin(t.Context())
	require.NoError(t, err)
	w.lineage = notice.Lineage{SystemIdentifier: base.Instance.SystemIdentifier, Timeline: base.Instance.Timeline}
	return w
}

// publish stores and announces.
func (w *writer) publish(names ...topic.Topic) []stored {
	w.t.Helper()
	rows := w.store(names...)
	w.announce(rows...)
	return rows
}

// store writes one envelope a topic, with repetitions, in one transaction.
func (w *writer) store(names ...topic.Topic) []stored {
	w.t.Helper()
	return w.storeSized(32, names...)
}

func (w *writer) storeSized(size int, names ...topic.Topic) []stored {
	w.t.Helper()
	payloads := make([][]byte, len(names))
	for i := range names {
		payloads[i] = payloadOf(size)
	}
	return w.storePayloads(payloads, names)
}

var payloadCount atomic.Uint64

// payloadOf is the encoding of a group message that no other has.
func payloadOf(size int) []byte {
	data := make([]byte, max(size, 8))
	binary.BigEndian.PutUint64(data, payloadCount.Add(1))
	encoded, err := proto.Marshal(&backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_GroupMessage{
		GroupMessage: &backendv1.GroupMessage{Data: data},
	}})
	if err != nil {
		panic(err)
	}
	return encoded
}

const storeSQL = `
WITH rows AS (
	SELECT t.topic, t.payload, t.hash, t.n, nextval('envelope_sequence') AS id
	FROM (SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS t(topic, payload, hash, n) ORDER BY n) AS t
), stored AS (
	INSERT INTO envelopes SELECT topic, id, (extract(epoch FROM now()) * 1000000000)::bigint, NULL, hash, false, pg_current_xact_id()::text::bigint, payload FROM rows
), moved AS (
	UPDATE topic_heads AS h SET last_sequence_id = m.id FROM (SELECT topic, max(id) AS id FROM rows GROUP BY topic) AS m WHERE h.topic = m.topic
)
SELECT n, id, (extract(epoch FROM now()) * 1000000000)::bigint FROM rows ORDER BY n`

func (w *writer) storePayloads(payloads [][]byte, names []topic.Topic) []stored {
	w.t.Helper()
	ctx := context.Background()
	var out []stored
	require.NoError(w.t, pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) (err error) {
		out, err = storeIn(ctx, tx, payloads, names)
		return err
	}))
	return out
}

// storeIn does what a publish transaction does between begin and commit.
func storeIn(ctx context.Context, tx pgx.Tx, payloads [][]byte, names []topic.Topic) ([]stored, error) {
	raw, hashes := make([][]byte, len(names)), make([][]byte, len(names))
	for i, name := range names {
		raw[i] = []byte(name)
		hash := sha256.Sum256(payloads[i])
		hashes[i] = hash[:]
	}
	if _, err := tx.Exec(ctx, `INSERT INTO topic_heads SELECT DISTINCT t, 0 FROM unnest($1::bytea[]) AS t ORDER BY t ON CONFLICT DO NOTHING`, raw); err != nil {
		return nil, err
	}
	heads := map[topic.Topic]topic.SequenceID{}
	rows, err := tx.Query(ctx, `SELECT topic, last_sequence_id FROM topic_heads WHERE topic = ANY($1) ORDER BY topic FOR UPDATE`, raw)
	if err != nil {
		return nil, err
	}
	var name []byte
	var head int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &head}, func() error {
		heads[topic.Topic(name)] = topic.SequenceID(head)
		return nil
	}); err != nil {
		return nil, err
	}
	rows, err = tx.Query(ctx, storeSQL, raw, payloads, hashes)
	if err != nil {
		return nil, err
	}
	out := make([]stored, 0, len(names))
	var n, id, ns int64
	_, err = pgx.ForEachRow(rows, []any{&n, &id, &ns}, func() error {
		i := n - 1
		s := stored{topic: names[i], id: topic.SequenceID(id), previous: heads[names[i]], payload: payloads[i]}
		s.meta = envelope.Meta{Topic: s.topic, SequenceID: s.id, ServerNS: ns, MessageHash: envelope.HashOf(s.payload)}
		heads[s.topic] = s.id
		out = append(out, s)
		return nil
	})
	return out, err
}

// announce sends the notices of stored envelopes.
func (w *writer) announce(rows ...stored) {
	for i := range rows {
		w.send(&rows[i], true)
	}
}

// send sends one notice. A bus that is away loses it.
func (w *writer) send(s *stored, inline bool) {
	n := notice.Notice{Topic: s.topic, SequenceID: s.id, Previous: s.previous, Lineage: w.lineage}
	if inline {
		n.Envelope = envelope.AppendServer(nil, &s.meta, s.payload)
	}
	_ = w.bus.Publish("xmtp.org=2Eexample=2Etest.notice.7", notice.Append(nil, &n))
}

// group is the n-th group topic.
func group(n int) topic.Topic {
	id := make([]byte, topic.GroupIDLength)
	binary.BigEndian.PutUint64(id, uint64(n))
	name, err := topic.New(topic.GroupMessage, id)
	if err != nil {
		panic(err)
	}
	return name
}

func groups(from, to int) []topic.Topic {
	names := make([]topic.Topic, 0, to-from)
	for n := from; n < to; n++ {
		names = append(names, group(n))
	}
	return names
}
