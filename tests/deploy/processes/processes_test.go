package processes

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/xmtp-selfhosted/backend/cmd/replay"
	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/deploy"
)

const (
	repository = "../../.."
	each       = 2 // instances of each role
)

// roles are in the order in which an upgrade replaces them.
var roles = []string{"publisher", "reader", "streamer", "gateway"}

// fleet is the backend as the chart has it, on loopback.
type fleet struct {
	manifests *deploy.Manifests
	secrets   map[string]map[string]string
	binaries  string
	instances map[string][]*Instance
}

func start(t *testing.T) *fleet {
	t.Helper()
	dir, err := os.MkdirTemp("", "xmtp-processes-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	f := &fleet{binaries: filepath.Join(dir, "bin"), instances: map[string][]*Instance{}}
	require.NoError(t, os.Mkdir(f.binaries, 0o755))
	require.NoError(t, Build(t.Context(), repository, f.binaries, roles...))

	primary, err := pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: filepath.Join(dir, "primary"), Settings: map[string]string{"fsync": "off"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, primary.Stop(pglocal.Immediate)) })
	connection, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	require.NoError(t, err)
	_, err = connection.Exec(t.Context(), "CREATE DATABASE xmtp")
	require.NoError(t, err)
	require.NoError(t, connection.Close(t.Context()))
	replica, err := pglocal.StartReplica(t.Context(), primary, pglocal.Options{Dir: filepath.Join(dir, "replica")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Stop(pglocal.Immediate)) })
	bus, err := natslocal.Start(natslocal.Options{})
	require.NoError(t, err)
	t.Cleanup(bus.Stop)

	f.secrets = map[string]map[string]string{
		"databases": {"primary-url": primary.URL("xmtp"), "replica-url": replica.URL("xmtp")},
		"bus":       {"nats-url": bus.URL()},
	}
	f.manifests, err = deploy.Render(repository+"/deploy/k8s", "../testdata/secrets.yaml", repository+"/deploy/k8s/values-small.yaml")
	require.NoError(t, err)
	f.migrate(t)
	for _, role := range roles {
		for range each {
			f.add(t, role)
		}
	}
	for _, role := range roles {
		for _, instance := range f.instances[role] {
			require.NoError(t, instance.Start())
			t.Cleanup(func() { assert.NoError(t, instance.Stop()) })
		}
	}
	for _, role := range roles {
		for _, instance := range f.instances[role] {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			require.NoError(t, instance.Ready(ctx))
			cancel()
		}
	}
	return f
}

// migrate does the work of the chart's Job.
func (f *fleet) migrate(t *testing.T) {
	t.Helper()
	container := f.manifests.Jobs[deploy.Release+"-xmtp-backend-migrate"].Spec.Template.Spec.Containers[0]
	environment, err := f.manifests.Environment(container, f.secrets)
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), filepath.Join(f.binaries, "publisher"), container.Args...)
	for name, value := range environment {
		command.Env = append(command.Env, name+"="+value)
	}
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
}

// add describes an instance: the environment of the container, with addresses of
// this machine in the place of those of the cluster.
func (f *fleet) add(t *testing.T, role string) {
	t.Helper()
	pod := f.manifests.Deployments[deploy.Release+"-xmtp-backend-"+role].Spec.Template.Spec
	environment, err := f.manifests.Environment(pod.Containers[0], f.secrets)
	require.NoError(t, err)
	address := func() string {
		port, err := freeport.Pick()
		require.NoError(t, err)
		return "127.0.0.1:" + strconv.Itoa(port)
	}
	listen := "XMTP_" + strings.ToUpper(role) + "_LISTEN"
	require.Contains(t, environment, listen)
	environment[listen], environment["XMTP_METRICS_LISTEN"] = address(), address()
	for _, upstream := range roles[:3] {
		variable := "XMTP_" + strings.ToUpper(upstream) + "_ENDPOINT"
		if _, given := environment[variable]; given {
			environment[variable] = strings.Join(f.addresses(upstream), ",") // what the headless Service resolves to
		}
	}
	// A machine that stands still for a while is not a database that is away.
	if role != "gateway" {
		environment["XMTP_DB_ACQUIRE_TIMEOUT"] = "15s"
	}
	if role == "reader" {
		environment["XMTP_DB_PROBE_TIMEOUT"] = "15s"
	}
	grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
	f.instances[role] = append(f.instances[role], NewInstance(f.binaries, role, environment[listen], environment, grace))
}

func (f *fleet) addresses(role string) []string {
	var addresses []string
	for _, instance := range f.instances[role] {
		addresses = append(addresses, instance.Address)
	}
	return addresses
}

// roll restarts each instance of a role, one after the other.
func (f *fleet) roll(ctx context.Context, role string) error {
	for _, instance := range f.instances[role] {
		if err := instance.Stop(); err != nil {
			return err
		}
		if err := instance.Start(); err != nil {
			return err
		}
		ready, cancel := context.WithTimeout(ctx, time.Minute)
		err := instance.Ready(ready)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

func TestRollingRestartOfEachRoleUnderLoadLosesNothing(t *testing.T) {
	f := start(t)
	connection, err := rpc.Dial(strings.Join(f.addresses("gateway"), ","), rpc.DialDeps{MaxResponseBytes: 64 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	client := NewClient(connection)

	// Reads go on all the time, beside the session that is published and followed.
	reading, stopReading := context.WithCancel(t.Context())
	readErrors := make(chan error, 1)
	go func() { readErrors <- read(reading, client) }()

	rolled := make(chan error, 1)
	plan, err := replay.Presentable(time.Now(), uint64(time.Now().UnixNano()), 400)
	require.NoError(t, err)
	report, err := replay.Run(t.Context(), client, plan, replay.Options{DeliveryTimeout: time.Minute, Between: func(request int) {
		switch request {
		case 50: // well under way
			go func() { rolled <- f.rollAll(t.Context(), client) }()
		case len(plan.Requests) - 20: // something is published after it, too
			assert.NoError(t, <-rolled)
		default:
			time.Sleep(15 * time.Millisecond) // spread the requests over the restarts
		}
	}})
	require.NoError(t, err)
	stopReading()
	require.NoError(t, <-readErrors)
	require.Equal(t, report.Stored, report.Delivered)

	t.Logf("%d envelopes stored and delivered; calls that failed and were repeated: %v", report.Stored, client.Failures())
	for phase, failures := range client.Failures() {
		require.Equal(t, "gateway", phase, "a restart of other roles is invisible")
		require.Equal(t, []codes.Code{codes.Unavailable}, keys(failures), "only calls fail that may be repeated")
	}
}

func (f *fleet) rollAll(ctx context.Context, client *Client) error {
	for _, role := range roles {
		client.Phase(role)
		if err := f.roll(ctx, role); err != nil {
			return fmt.Errorf("roll the %s: %w", role, err)
		}
	}
	return nil
}

// read queries without a pause worth mentioning until ctx ends.
func read(ctx context.Context, client *Client) error {
	queries := backendv1.NewQueryServiceClient(client)
	topic := &backendv1.Topic{Topic: append([]byte{0}, make([]byte, 16)...)}
	for ctx.Err() == nil {
		if _, err := queries.Query(ctx, &backendv1.QueryRequest{Queries: []*backendv1.TopicQuery{{Topic: topic}}}); err != nil && ctx.Err() == nil {
			return fmt.Errorf("query: %w", err)
		}
		if _, err := queries.QueryNewest(ctx, &backendv1.QueryNewestRequest{Topics: []*backendv1.Topic{topic}}); err != nil && ctx.Err() == nil {
			return fmt.Errorf("query newest: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

func keys(failures map[codes.Code]int) []codes.Code {
	var codes []codes.Code
	for code := range maps.Keys(failures) {
		codes = append(codes, code)
	}
	return codes
}
