package siege

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/tests/robustness/attack"
	"github.com/xmtp-selfhosted/backend/tests/robustness/fault"
)

// Roles are in the order in which they are started.
var Roles = []string{"publisher", "reader", "streamer", "gateway"}

// Role is one process under attack.
type Role struct {
	Name  string
	Limit int64 // bytes
	// Address is where it listens, Metrics where it shows its metrics.
	Address, Metrics string
	process          *fault.Process
	memory           memory
}

// Fleet is a backend, one process of each role, without a replica.
type Fleet struct {
	Roles map[string]*Role

	binaries string
	database *pglocal.Server
	bus      *natslocal.Server
	chain    net.Listener // accepts and says nothing
	stop     func()       // the watches
}

// Build compiles the roles and the attack program into dir.
func Build(ctx context.Context, dir string) error {
	if err := fault.Build(ctx, dir); err != nil {
		return err
	}
	root, err := fault.Root(ctx)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", "build", "-o", attackProgram(dir), "./tests/robustness/attack/cmd")
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the attacks: %w: %s", err, out)
	}
	return nil
}

func attackProgram(dir string) string { return filepath.Join(dir, "attack") }

// Start brings everything up in dir, a folder that PostgreSQL's user can enter,
// and waits until it serves. binaries is what Build made.
func Start(ctx context.Context, dir, binaries string, pods map[string]Pod) (_ *Fleet, err error) {
	f := &Fleet{Roles: map[string]*Role{}, binaries: binaries, stop: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Stop())
		}
	}()
	if err := f.startServers(ctx, dir); err != nil {
		return nil, err
	}
	given := map[string]string{
		"XMTP_PRIMARY_URL": f.database.URL("xmtp"), "XMTP_NATS_URL": f.bus.URL(), "XMTP_CHAINS": attack.SilentChain + "=http://" + f.chain.Addr().String(),
	}
	for _, name := range Roles {
		if err := f.describe(dir, name, pods[name], given); err != nil {
			return nil, err
		}
	}
	migration := exec.CommandContext(ctx, filepath.Join(binaries, "publisher"), "migrate")
	migration.Env = []string{"XMTP_PRIMARY_URL=" + given["XMTP_PRIMARY_URL"]}
	if out, err := migration.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("migrate: %w: %s", err, out)
	}
	for _, name := range Roles {
		if err := f.Roles[name].process.Start(); err != nil {
			return nil, err
		}
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { f.watch(watching); close(ended) }()
	f.stop = func() { stop(); <-ended }
	return f, f.ready(ctx)
}

func (f *Fleet) startServers(ctx context.Context, dir string) (err error) {
	f.database, err = pglocal.StartPrimary(ctx, pglocal.Options{Dir: filepath.Join(dir, "primary"), Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, f.database.URL("postgres"))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE xmtp")
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	f.bus, err = natslocal.Start(natslocal.Options{})
	if err != nil {
		return err
	}
	f.chain, err = freeport.Listen()
	return err
}

// describe makes a role of a pod: addresses of this machine take the place of
// those of a cluster.
func (f *Fleet) describe(dir, name string, pod Pod, given map[string]string) error {
	role := &Role{Name: name, Limit: pod.LimitBytes}
	for _, address := range []*string{&role.Address, &role.Metrics} {
		port, err := freeport.Pick()
		if err != nil {
			return err
		}
		*address = "127.0.0.1:" + strconv.Itoa(port)
	}
	environment := maps.Clone(pod.Environment)
	maps.Copy(environment, given)
	environment["XMTP_"+strings.ToUpper(name)+"_LISTEN"], environment["XMTP_METRICS_LISTEN"] = role.Address, role.Metrics
	for upstream, other := range f.Roles {
		environment["XMTP_"+strings.ToUpper(upstream)+"_ENDPOINT"] = other.Address
	}
	var list []string
	for _, variable := range slices.Sorted(maps.Keys(environment)) {
		list = append(list, variable+"="+environment[variable])
	}
	role.process = fault.NewProcess(name, filepath.Join(f.binaries, name), list, filepath.Join(dir, name+".log"))
	f.Roles[name] = role
	return nil
}

const readyWithin = time.Minute

// ready waits until every role says that it serves.
func (f *Fleet) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for _, name := range Roles {
		if err := serving(ctx, f.Roles[name].Address); err != nil {
			return fmt.Errorf("the %s does not serve: %w", name, err)
		}
	}
	return nil
}

func serving(ctx context.Context, address string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for {
		answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends everything.
func (f *Fleet) Stop() error {
	f.stop()
	var errs []error
	for _, name := range slices.Backward(Roles) {
		if role := f.Roles[name]; role != nil {
			errs = append(errs, role.process.End(syscall.SIGTERM))
			for _, died := range role.process.Died() {
				errs = append(errs, errors.New(died))
			}
		}
	}
	if f.chain != nil {
		errs = append(errs, f.chain.Close())
	}
	if f.bus != nil {
		f.bus.Stop()
	}
	if f.database != nil {
		errs = append(errs, f.database.Stop(pglocal.Immediate))
	}
	return errors.Join(errs...)
}
