package publisher_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// swapRoles makes the replica the primary, and the primary, which was stopped in good
// order, a standby of it under its old address.
func swapRoles(t *testing.T, primary, replica *pglocal.Server) {
	t.Helper()
	pgtest.WaitReplayed(t, primary, replica)
	require.NoError(t, primary.Stop(pglocal.Fast))
	require.NoError(t, replica.Promote(t.Context()))
	data := filepath.Join(primary.Dir(), "data")
	require.NoError(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600))
	file, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = fmt.Fprintf(file, "\nprimary_conninfo = 'host=127.0.0.1 port=%d user=postgres sslmode=disable'\n", replica.Port())
	require.NoError(t, err)
	require.NoError(t, file.Close())
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `chown "$(stat -c %u:%g "$1")" "$1/standby.signal"`, "sh", data).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, primary.Start(t.Context()))
}

// isServing asks the role for its health.
func (r *role) isServing() bool {
	r.t.Helper()
	answer, err := grpc_health_v1.NewHealthClient(dial(r.t, r.address)).Check(r.t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(r.t, err)
	return answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

func (r *role) awaitHealth(serving bool) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.isServing() == serving }, within, 20*time.Millisecond, "its health becomes serving: %v", serving)
}

// A planned switchover, in which the old primary stays reachable as a standby: a
// publisher says that it has no primary, as long as it is led to the standby, and
// publishes as soon as it finds the new one.
func TestASwitchoverToAnotherPrimary(t *testing.T) {
	for name, c := range map[string]struct {
		// url is what the publisher connects to; late is moved when the roles are swapped.
		url  func(primary, replica *pglocal.Server, late *proxy) string
		late bool
	}{
		"a name that follows late": {func(_, _ *pglocal.Server, late *proxy) string { return late.url("postgres") }, true},
		"a list of hosts": {func(primary, replica *pglocal.Server, _ *proxy) string {
			return fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", replica.Port(), primary.Port())
		}, false},
		"a list of hosts that asks for one to read from": {func(primary, replica *pglocal.Server, _ *proxy) string {
			return fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=prefer-standby", primary.Port(), replica.Port())
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			primary, replica := pgtest.OwnCluster(t, nil)
			require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
			pgtest.WaitReplayed(t, primary, replica)
			bus, err := natslocal.Start(natslocal.Options{})
			require.NoError(t, err)
			t.Cleanup(bus.Stop)
			late := newProxy(t, primary)
			r := startOn(t, c.url(primary, replica, late), bus.URL())
			kit := testkit.New(64)
			last := r.fill(kit, 5)
			r.awaitHealth(true)
			swapRoles(t, primary, replica)
			if c.late {
				require.Eventually(t, func() bool {
					_, err := r.try(kit.GroupMessage(kit.Group(), 1))
					require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
					return status.Convert(err).Message() == "the database is a standby, expected the primary"
				}, within, 5*time.Millisecond, "it says that this is no primary")
				r.awaitHealth(false)
				late.lead(replica)
			}
			require.Greater(t, id(r.publish(kit.GroupMessage(kit.Group(), 1))[0]), last)
			r.awaitHealth(true)
		})
	}
}

// failover is a primary whose replica was promoted without its latest commits, and a
// publisher that does not know yet.
type failover struct {
	*role
	primary, promoted *pglocal.Server
	name              *proxy
}

func newFailover(t *testing.T, before func(*role)) failover {
	t.Helper()
	primary, replica := pgtest.OwnCluster(t, nil)
	require.NoError(t, migrate(t.Context(), primary.URL("postgres")))
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)
	f := failover{primary: primary, promoted: replica, name: newProxy(t, primary)}
	f.role = startOn(t, f.name.url("postgres"), bus.URL())
	before(f.role)
	pgtest.WaitReplayed(t, primary, replica)
	require.NoError(t, replica.Promote(t.Context()))
	return f
}

// repeatOver publishes an update that is stored on the old primary, and lets the
// failover come between its validation, which finds it stored, and its commit.
func (f failover) repeatOver(update *backendv1.ClientEnvelope) error {
	f.t.Helper()
	lock, err := pgx.Connect(f.t.Context(), f.primary.URL("postgres"))
	require.NoError(f.t, err)
	defer func() { _ = lock.Close(context.Background()) }()
	_, err = lock.Exec(f.t.Context(), "SELECT pg_advisory_lock(8245931098215104001)")
	require.NoError(f.t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := f.try(update)
		ended <- err
	}()
	var waits bool
	require.Eventually(f.t, func() bool {
		require.NoError(f.t, lock.QueryRow(f.t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE application_name = 'xmtp-backend' AND wait_event_type = 'Lock')`).Scan(&waits))
		return waits
	}, within, time.Millisecond, "its commit waits for the lock")
	f.name.lead(f.promoted)
	return receive(f.t, ended, "the answer")
}

func (f failover) inbox(inbox string) (updates, members int) {
	f.t.Helper()
	id, err := hex.DecodeString(inbox)
	require.NoError(f.t, err)
	conn, err := pgx.Connect(f.t.Context(), f.promoted.URL("postgres"))
	require.NoError(f.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	require.NoError(f.t, conn.QueryRow(f.t.Context(), `SELECT (SELECT count(*) FROM envelopes WHERE get_byte(topic, 0) = 2),
		(SELECT count(*) FROM identifier_associations WHERE inbox_id = $1 AND identifier_kind = 1)`, id).Scan(&updates, &members))
	return updates, members
}

// What validation found stored on the old primary is validated again on the new one,
// which never had it, and the inbox can be extended by its owner afterwards.
func TestAnUpdateLostByAFailoverIsValidatedAgain(t *testing.T) {
	kit, now := testkit.New(65), uint64(time.Now().UnixNano())
	client, other, third := kit.Client(), associationtest.NewWallet("failover, second"), associationtest.NewWallet("failover, third")
	add := func(wallet *associationtest.Wallet) *backendv1.ClientEnvelope {
		now += uint64(time.Second)
		return testkit.Identity(associationtest.NewUpdate(client.InboxID, now).Add(client.Wallet, wallet).Update())
	}
	f := newFailover(t, func(r *role) { r.publish(client.Registration(time.Now())) })
	update := add(other)
	before := id(f.publish(update)[0]) // on the old primary only
	if err := f.repeatOver(update); err != nil {
		require.Contains(t, []codes.Code{codes.Unavailable, codes.DeadlineExceeded}, status.Code(err), "%v", err)
	}
	require.Greater(t, id(f.publish(update)[0]), before)
	updates, members := f.inbox(client.InboxID)
	require.Equal(t, []int{2, 2}, []int{updates, members}, "it is stored with its projection")
	f.publish(add(third))
	updates, members = f.inbox(client.InboxID)
	require.Equal(t, []int{3, 3}, []int{updates, members})
}

// On the new primary the inbox does not exist: the update is refused, not stored.
func TestAnUpdateThatAFailoverMadeInvalidIsNotStored(t *testing.T) {
	kit, now := testkit.New(66), uint64(time.Now().UnixNano())
	client, other := kit.Client(), associationtest.NewWallet("failover, second")
	f := newFailover(t, func(r *role) { r.publish(kit.GroupMessage(kit.Group(), 1)) })
	registration := client.Registration(time.Now())
	update := testkit.Identity(associationtest.NewUpdate(client.InboxID, now).Add(client.Wallet, other).Update())
	f.publish(registration)
	f.publish(update)
	require.Error(t, f.repeatOver(update))
	_, err := f.persist(update)
	requireRefused(t, err, codes.InvalidArgument, badUpdate, 0)
	updates, members := f.inbox(client.InboxID)
	require.Equal(t, []int{0, 0}, []int{updates, members})
	f.publish(registration)
	f.publish(update)
	updates, members = f.inbox(client.InboxID)
	require.Equal(t, []int{2, 2}, []int{updates, members})
}
