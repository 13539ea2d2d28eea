package publisher_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

// roleProcess makes a copy of this binary a publisher: one that can be killed.
const roleProcess = "PUBLISHER_TEST_ROLE"

// servePublisher is the copy's main.
func servePublisher() error {
	cfg, err := config.Load[publisher.Config]()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return err
	}
	p, err := publisher.New(cfg, publisher.Deps{Listener: listener, Logger: slog.New(slog.DiscardHandler), Metrics: telemetry.Discard()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // ends with the parent
		cancel()
	}()
	return p.Run(ctx)
}

// killable is a publisher in a process of its own.
type killable struct {
	t           *testing.T
	environment []string
	process     *exec.Cmd
	stop        func() error // of its standard input
}

func (k *killable) start() {
	self, err := os.Executable()
	require.NoError(k.t, err)
	k.process = exec.Command(self)
	k.process.Env = append(os.Environ(), k.environment...)
	k.process.Stderr = os.Stderr
	pipe, err := k.process.StdinPipe()
	require.NoError(k.t, err)
	k.stop = pipe.Close
	require.NoError(k.t, k.process.Start())
}

func (k *killable) kill() {
	require.NoError(k.t, k.process.Process.Kill())
	require.Error(k.t, k.process.Wait(), "it was killed")
}

// sent is a request and what became of it.
type sent struct {
	envelopes []*backendv1.ClientEnvelope
	metas     []*backendv1.EnvelopeMeta // nil when there was no answer
}

// A publisher that is killed at any moment leaves each request wholly stored or
// wholly absent; sent again, it is answered as it was stored.
//
// Proves API-016, API-030, API-037, I1.
func TestAKilledPublisherLeavesWholeRequests(t *testing.T) {
	primary := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	port, err := freeport.Pick()
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	k := &killable{t: t, environment: []string{
		roleProcess + "=1", "XMTP_PUBLISHER_LISTEN=" + address, "XMTP_PRIMARY_URL=" + primary, "XMTP_NATS_URL=" + bus.URL(), "XMTP_IDENTIFIER=" + identifier,
	}}
	k.start()

	const clients, kills, perRequest, between = 8, 8, 4, 40
	var answered atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	all := make([][]sent, clients)
	groups := []testkit.Group{testkit.New(90).Group(), testkit.New(91).Group(), testkit.New(92).Group()}
	var running sync.WaitGroup
	for i := range clients {
		client, kit := backendv1.NewPublishServiceClient(dial(t, address)), testkit.New(uint64(100+i))
		running.Go(func() {
			for ctx.Err() == nil {
				one := sent{}
				for n := range perRequest {
					one.envelopes = append(one.envelopes, kit.GroupMessage(groups[(n+i)%len(groups)], 200))
				}
				response, err := client.Publish(context.Background(), &backendv1.PublishRequest{Envelopes: one.envelopes}, grpc.WaitForReady(true))
				if err == nil {
					one.metas = response.GetEnvelopeMetas()
					answered.Add(1)
				}
				all[i] = append(all[i], one)
			}
		})
	}
	for range kills {
		enough := answered.Load() + between
		require.Eventually(t, func() bool { return answered.Load() >= enough }, within, time.Millisecond, "publishes are answered")
		k.kill()
		k.start()
	}
	cancel()
	running.Wait()
	require.NoError(t, k.stop())
	require.NoError(t, k.process.Wait())

	r := startOn(t, primary, bus.URL())
	lost, kept := 0, 0
	for _, requests := range all {
		for _, one := range requests {
			before := r.rows()
			metas := r.publish(one.envelopes...)
			added := r.rows() - before
			switch {
			case one.metas != nil:
				require.Zero(t, added, "an acknowledged request was not stored")
				for n := range metas {
					require.True(t, proto.Equal(one.metas[n], metas[n]), "sent again, envelope %d is answered otherwise", n)
				}
			case added == 0:
				kept++
			default:
				require.Equal(t, perRequest, added, "a request was stored in part")
				lost++
			}
		}
	}
	t.Logf("%d requests answered; of those without an answer %d were stored and %d were not", answered.Load(), kept, lost)
	require.Positive(t, lost+kept, "no request was under way when the publisher was killed")
}
