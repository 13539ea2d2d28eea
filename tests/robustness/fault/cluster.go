// Package fault runs the backend as real processes and breaks it on purpose: it
// kills, stops and restarts each part and cuts the ways between them, by a
// schedule that follows from a seed.
package fault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/natslocal"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// Options describe a cluster.
type Options struct {
	// Dir is a folder that PostgreSQL's user can enter. Logs stay in it.
	Dir string
	// Binaries holds the programs of the roles: see Build.
	Binaries string
	// Publishers and Streamers are how many instances run; one reader, one gateway.
	Publishers, Streamers int
	// Environment is further XMTP_ variables, for all roles.
	Environment map[string]string
	// Settings are parameters of PostgreSQL; ReplicaSettings go on top of them.
	Settings, ReplicaSettings map[string]string
	// PrimaryDir is the primary's folder when it is to be another than one in Dir.
	PrimaryDir string
}

// Cluster is a backend of real processes with a proxy on every way.
type Cluster struct {
	Primary, Replica *pglocal.Server
	NATS             *natslocal.Server
	Processes        []*Process
	// Proxies by the way that they are on, such as "publishers to primary".
	Proxies map[string]*Proxy
	// Gateway is where clients connect.
	Gateway string
	// OnFailover is called when a replica was promoted, before anybody reaches it.
	OnFailover func()
	// Failovers are those that happened, in their order.
	Failovers []Failover

	options  Options
	replicas int          // that were started
	servers  sync.RWMutex // held for reading by who uses Primary and Replica beside Run
}

// Names of the ways that proxies are on.
const (
	PublishersToPrimary = "publishers to primary"
	ReaderToPrimary     = "reader to primary"
	ReaderToReplica     = "reader to replica"
	StreamersToReplica  = "streamers to replica"
	PublishersToNATS    = "publishers to NATS"
	StreamersToNATS     = "streamers to NATS"
	ReplicaToPrimary    = "replica to primary"
)

// Build compiles the roles into dir. Arguments go to go build, such as -overlay.
func Build(ctx context.Context, dir string, arguments ...string) error {
	root, err := Root(ctx)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", slices.Concat([]string{"build"}, arguments, []string{"-o", dir + "/",
		"./services/publisher/cmd/publisher", "./services/reader/cmd/reader", "./services/streamer/cmd/streamer", "./services/gateway/cmd/gateway"})...)
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the roles: %w: %s", err, out)
	}
	return nil
}

// Root is the folder of the workspace.
func Root(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("find the workspace: %w", err)
	}
	file := strings.TrimSpace(string(out))
	if file == "" || file == "off" {
		return "", errors.New("find the workspace: no go.work above the working directory")
	}
	return filepath.Dir(file), nil
}

// database is the name of the backend's.
const database = "xmtp"

// Start brings everything up; it does not wait for the roles to be ready.
func Start(ctx context.Context, options Options) (_ *Cluster, err error) {
	c := &Cluster{options: options, Proxies: map[string]*Proxy{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if options.PrimaryDir == "" {
		options.PrimaryDir = filepath.Join(options.Dir, "primary")
	}
	settings := map[string]string{
		"fsync":                       "off", // processes are killed, the machine is not
		"track_commit_timestamp":      "on",  // the checker compares commit order
		"wal_retrieve_retry_interval": "200ms",
		"max_connections":             "200",
	}
	maps.Copy(settings, options.Settings)
	c.Primary, err = pglocal.StartPrimary(ctx, pglocal.Options{Dir: options.PrimaryDir, Settings: settings})
	if err != nil {
		return nil, err
	}
	if err := c.Exec(ctx, c.Primary.URL("postgres"), "CREATE DATABASE "+database); err != nil {
		return nil, err
	}
	if err := errors.Join(c.proxy(ReplicaToPrimary, address(c.Primary.Port())), c.startReplica(ctx)); err != nil {
		return nil, err
	}
	c.NATS, err = natslocal.Start(natslocal.Options{})
	if err != nil {
		return nil, err
	}
	if err := c.startProxies(); err != nil {
		return nil, err
	}
	return c, c.startRoles()
}

// startReplica starts a replica that follows the primary through the proxy
// ReplicaToPrimary.
func (c *Cluster) startReplica(ctx context.Context) error {
	host, port, err := net.SplitHostPort(c.Proxies[ReplicaToPrimary].Address())
	if err != nil {
		return err
	}
	settings := map[string]string{"primary_conninfo": fmt.Sprintf("host=%s port=%s user=postgres sslmode=disable", host, port)}
	maps.Copy(settings, c.options.ReplicaSettings)
	c.replicas++
	dir := filepath.Join(c.options.Dir, fmt.Sprintf("replica-%d", c.replicas))
	c.Replica, err = pglocal.StartReplica(ctx, c.Primary, pglocal.Options{Dir: dir, Settings: settings})
	return err
}

func address(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// clockLibrary is where Debian has it, by architecture.
const clockLibrary = "/usr/lib/*/faketime/libfaketime.so.1"

// RestartPrimaryAt restarts the primary with a clock that is off, such as by
// "+1h"; "" is the right time. It changes the environment of this process for the
// moment of the start.
func (c *Cluster) RestartPrimaryAt(ctx context.Context, offset string) error {
	found, err := filepath.Glob(clockLibrary)
	if err != nil || len(found) == 0 {
		return errors.Join(err, errors.New("there is no libfaketime: apt-get install libfaketime"))
	}
	if err := c.Primary.Stop(pglocal.Fast); err != nil {
		return err
	}
	if offset != "" {
		for name, value := range map[string]string{"LD_PRELOAD": found[0], "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"} {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
			defer func() { _ = os.Unsetenv(name) }()
		}
	}
	return c.Primary.Start(ctx)
}

func (c *Cluster) startProxies() error {
	for way, target := range map[string]string{
		PublishersToPrimary: address(c.Primary.Port()),
		ReaderToPrimary:     address(c.Primary.Port()),
		ReaderToReplica:     address(c.Replica.Port()),
		StreamersToReplica:  address(c.Replica.Port()),
		PublishersToNATS:    address(c.NATS.Port()),
		StreamersToNATS:     address(c.NATS.Port()),
	} {
		if err := c.proxy(way, target); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) proxy(way, target string) error {
	proxy, err := StartProxy(target)
	if err != nil {
		return fmt.Errorf("start a proxy from %s: %w", way, err)
	}
	c.Proxies[way] = proxy
	return nil
}

// through is a server's URL by way of a proxy.
func (c *Cluster) through(server, way string) string {
	u, err := url.Parse(server)
	if err != nil {
		panic(fmt.Sprintf("a URL of our own: %v", err))
	}
	u.Host = c.Proxies[way].Address()
	return u.String()
}

// startRoles starts every role on a port of its own, behind a proxy of its own.
func (c *Cluster) startRoles() error {
	primary, replica := c.Primary.URL(database), c.Replica.URL(database)
	endpoints := map[string][]string{}
	start := func(role string, n int, environment map[string]string) error {
		for i := range n {
			port, err := freeport.Pick()
			if err != nil {
				return err
			}
			name, listen := role, fmt.Sprintf("127.0.0.1:%d", port)
			if n > 1 {
				name += fmt.Sprintf(" %d", i+1)
			}
			environment["XMTP_"+strings.ToUpper(role)+"_LISTEN"] = listen
			if role == "gateway" {
				c.Gateway = listen
			} else {
				if err := c.proxy("gateway to "+name, listen); err != nil {
					return err
				}
				endpoints[role] = append(endpoints[role], c.Proxies["gateway to "+name].Address())
			}
			process := NewProcess(name, filepath.Join(c.options.Binaries, role), c.environ(environment),
				filepath.Join(c.options.Dir, strings.ReplaceAll(name, " ", "-")+".log"))
			if err := process.Start(); err != nil {
				return err
			}
			c.Processes = append(c.Processes, process)
		}
		return nil
	}
	return errors.Join(
		start("publisher", c.options.Publishers, map[string]string{
			"XMTP_PRIMARY_URL": c.through(primary, PublishersToPrimary), "XMTP_NATS_URL": c.through(c.NATS.URL(), PublishersToNATS)}),
		start("reader", 1, map[string]string{
			"XMTP_PRIMARY_URL": c.through(primary, ReaderToPrimary), "XMTP_REPLICA_URL": c.through(replica, ReaderToReplica)}),
		start("streamer", c.options.Streamers, map[string]string{
			"XMTP_REPLICA_URL": c.through(replica, StreamersToReplica), "XMTP_NATS_URL": c.through(c.NATS.URL(), StreamersToNATS)}),
		start("gateway", 1, map[string]string{
			"XMTP_PUBLISHER_ENDPOINT": strings.Join(endpoints["publisher"], ","), "XMTP_READER_ENDPOINT": strings.Join(endpoints["reader"], ","),
			"XMTP_STREAMER_ENDPOINT": strings.Join(endpoints["streamer"], ",")}),
	)
}

// environ is a role's environment: nothing of ours but what Go programs need.
func (c *Cluster) environ(own map[string]string) []string {
	all := map[string]string{"XMTP_IDENTIFIER": "org.example.chaos", "XMTP_KEEPALIVE_INTERVAL": "2s", "PATH": "/usr/bin:/bin", "GOTRACEBACK": "all"}
	maps.Copy(all, c.options.Environment)
	maps.Copy(all, own)
	var list []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// Process returns a role's process by its name.
func (c *Cluster) Process(name string) *Process {
	at := slices.IndexFunc(c.Processes, func(p *Process) bool { return p.Name == name })
	if at < 0 {
		panic("no process named " + name) // the names are in this package
	}
	return c.Processes[at]
}

// DatabaseURL is the backend's database on a server, without a proxy.
func (c *Cluster) DatabaseURL(server *pglocal.Server) string { return server.URL(database) }

// Exec runs statements on a server.
func (c *Cluster) Exec(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// EndPublishing stops the publishers and waits until none of their transactions is
// left on the server: afterwards its table does not change any more. A client that
// gave up says nothing about that, its request may still be under way.
func (c *Cluster) EndPublishing(ctx context.Context, server *pglocal.Server) error {
	for _, p := range c.Processes {
		if strings.HasPrefix(p.Name, "publisher") {
			if err := p.End(syscall.SIGTERM); err != nil {
				return err
			}
		}
	}
	conn, err := pgx.Connect(ctx, c.DatabaseURL(server))
	if err != nil {
		return fmt.Errorf("wait for the last transactions: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for {
		var writing int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
			AND (backend_xid IS NOT NULL OR state = 'active')`).Scan(&writing)
		if err != nil || writing == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the last %d transactions: %w", writing, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Died lists processes that ended by themselves: no fault of the schedule may
// have that effect.
func (c *Cluster) Died() []string {
	var all []string
	for _, p := range c.Processes {
		all = append(all, p.Died()...)
	}
	return all
}

// Stop ends everything.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range slices.Backward(c.Processes) {
		_ = p.Signal(syscall.SIGCONT)
		errs = append(errs, p.End(syscall.SIGTERM))
	}
	for _, proxy := range c.Proxies {
		proxy.Close()
	}
	if c.NATS != nil {
		c.NATS.Stop()
	}
	for _, server := range []*pglocal.Server{c.Replica, c.Primary} {
		if server != nil {
			errs = append(errs, server.Stop(pglocal.Immediate))
		}
	}
	return errors.Join(errs...)
}

// TempDir makes a folder that PostgreSQL's user can enter.
func TempDir() (string, error) {
	dir, err := os.MkdirTemp("", "xmtp-chaos-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}
