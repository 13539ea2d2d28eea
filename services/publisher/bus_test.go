package publisher_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal/natstest"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
)

func TestMain(m *testing.M) {
	natstest.Main()
	if os.Getenv(roleProcess) != "" {
		if err := servePublisher(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m, pgtest.CheckLeaks())
}

// Publishing goes on, one envelope after the other, whatever the bus does. That
// no publish waits shows in the count: a bus that delayed them would by far not
// let so many through in the time.
func TestPublishingDoesNotNeedTheBus(t *testing.T) {
	primary := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	kit := testkit.New(70)
	goesOn := func(t *testing.T, r *role) {
		t.Helper()
		for range 100 {
			_, err := r.try(kit.GroupMessage(kit.Group(), 60_000))
			require.NoError(t, err)
		}
	}
	t.Run("stopped", func(t *testing.T) {
		url, process := natstest.Start(t)
		r := startOn(t, primary, url)
		heard := r.listen()
		require.Eventually(t, func() bool {
			r.publish(kit.GroupMessage(kit.Group(), 1))
			return len(heard) > 0
		}, within, 10*time.Millisecond, "notices arrive")
		require.NoError(t, process.Signal(syscall.SIGSTOP))
		goesOn(t, r)
		require.NoError(t, process.Signal(syscall.SIGCONT))
	})
	t.Run("killed", func(t *testing.T) {
		url, process := natstest.Start(t)
		r := startOn(t, primary, url)
		r.publish(kit.GroupMessage(kit.Group(), 1))
		require.NoError(t, process.Kill())
		goesOn(t, r)
	})
	t.Run("never there", func(t *testing.T) {
		port, err := freeport.Pick()
		require.NoError(t, err)
		goesOn(t, startOn(t, primary, "nats://127.0.0.1:"+strconv.Itoa(port)))
	})
	t.Run("refusing payloads", func(t *testing.T) {
		bus, err := natslocal.Start(natslocal.Options{MaxPayload: 50})
		require.NoError(t, err)
		t.Cleanup(bus.Stop)
		goesOn(t, startOn(t, primary, bus.URL()))
	})
}

// BenchmarkPublishBesideABus takes turns between publishers whose bus is in
// different states, and reports the rate of each against the one whose bus works.
//
//	go test ./services/publisher -run '^$' -bench BesideABus -benchtime 5x
func BenchmarkPublishBesideABus(b *testing.B) {
	primary := pgtest.MigratedPrimary(b, migrate).PrimaryURL
	up, _ := natstest.Start(b)
	stopped, toStop := natstest.Start(b)
	killed, toKill := natstest.Start(b)
	small, err := natslocal.Start(natslocal.Options{MaxPayload: 50})
	require.NoError(b, err)
	b.Cleanup(small.Stop)
	names := []string{"up", "stopped", "killed", "refusing"}
	roles := make([]*role, len(names))
	kit := testkit.New(71)
	for i, url := range []string{up, stopped, killed, small.URL()} {
		roles[i] = startOn(b, primary, url)
		roles[i].publish(kit.GroupMessage(kit.Group(), 1))
	}
	require.NoError(b, toStop.Signal(syscall.SIGSTOP))
	require.NoError(b, toKill.Kill())
	ratios := make([][]float64, len(names))
	for b.Loop() {
		working := 0.0
		for i, r := range roles {
			rate := r.rate(16, 2*time.Second)
			if i == 0 {
				working = rate
			}
			ratios[i] = append(ratios[i], rate/working)
		}
	}
	for i, name := range names[1:] {
		slices.Sort(ratios[i+1])
		b.ReportMetric(ratios[i+1][len(ratios[i+1])/2], name+"/up")
	}
}

// rate publishes messages of 1 KiB for a while and returns how many a second.
func (r *role) rate(callers int, length time.Duration) float64 {
	published := make(chan int)
	until := time.Now().Add(length)
	for caller := range callers {
		go func() {
			kit, n := testkit.New(uint64(until.UnixNano())+uint64(caller)), 0
			for group := kit.Group(); time.Now().Before(until); n++ {
				if _, err := r.try(kit.GroupMessage(group, 1024)); err != nil {
					r.t.Error(err)
				}
			}
			published <- n
		}()
	}
	sum := 0
	for range callers {
		sum += <-published
	}
	return float64(sum) / length.Seconds()
}
