package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// Fault is something that goes wrong for a while.
type Fault struct {
	// At is when it begins, from the start of the run; For is how long it lasts.
	At, For time.Duration
	// Target is what it happens to, Kind what happens.
	Target, Kind string
}

func (f Fault) String() string {
	return fmt.Sprintf("%7.1fs %-32s %-8s for %.1fs", f.At.Seconds(), f.Target, f.Kind, f.For.Seconds())
}

// Kinds of faults. A restart is orderly, a kill is not; a delay holds every packet
// back; a replica that does not replay still takes connections. A failover kills
// the primary for good, after its replica lagged for a while, and promotes that.
const (
	Kill     = "kill"
	Pause    = "pause"
	Restart  = "restart"
	CutOff   = "cut"
	Stall    = "stall"
	Delay    = "delay"
	NoReplay = "replay"
	Takeover = "failover"
)

// target is what can break, and how often it is chosen.
type target struct {
	name   string
	kinds  []string
	weight int
}

var (
	processKinds = []string{Kill, Kill, Pause, Restart}
	serverKinds  = []string{Kill, Pause, Restart}
	wayKinds     = []string{CutOff, CutOff, Stall, Delay}
)

// Names of the servers as targets.
const (
	Primary = "primary"
	Replica = "replica"
	NATS    = "NATS"
	Servers = "both servers"
)

// targets are all parts of a cluster of two publishers and two streamers.
var targets = []target{
	{"publisher 1", processKinds, 4}, {"publisher 2", processKinds, 4},
	{"reader", processKinds, 2},
	{"streamer 1", processKinds, 4}, {"streamer 2", processKinds, 4},
	{"gateway", processKinds, 2},
	{Primary, serverKinds, 4},
	{Replica, []string{Kill, Pause, Restart, NoReplay, NoReplay}, 5},
	{NATS, []string{Restart}, 4},
	{Servers, []string{Takeover}, 2},
	{PublishersToPrimary, wayKinds, 3}, {ReaderToPrimary, wayKinds, 1}, {ReaderToReplica, wayKinds, 1}, {StreamersToReplica, wayKinds, 3},
	{ReplicaToPrimary, wayKinds, 4},
	{PublishersToNATS, wayKinds, 4}, {StreamersToNATS, wayKinds, 4},
	{"gateway to publisher 1", wayKinds, 2}, {"gateway to streamer 1", wayKinds, 2}, {"gateway to streamer 2", wayKinds, 2},
}

// Bounds of a schedule.
const (
	shortest, longest = 300 * time.Millisecond, 7 * time.Second
	gapShortest       = 200 * time.Millisecond
	gapLongest        = 3 * time.Second
	atOnce            = 2
)

// Plan is the schedule of a seed. At most two faults overlap, on different parts,
// and none with a failover; all end by the end of the duration. only, when given,
// are the parts that break.
func Plan(seed uint64, duration time.Duration, only ...string) []Fault {
	random := rand.New(rand.NewPCG(seed, 7))
	chosen, total := targets, 0
	if len(only) > 0 {
		chosen = nil
		for _, t := range targets {
			for _, name := range only {
				if t.name == name {
					chosen = append(chosen, t)
				}
			}
		}
	}
	for _, t := range chosen {
		total += t.weight
	}
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(random.Int64N(int64(high-low)))
	}
	var plan []Fault
	busy := map[string]time.Duration{} // until when
	for at := between(gapShortest, gapLongest); ; at += between(gapShortest, gapLongest) {
		open := 0
		for _, until := range busy {
			if until > at {
				open++
			}
		}
		if at+shortest >= duration {
			return plan
		}
		draw, i := random.IntN(total), 0
		for ; draw >= chosen[i].weight; i++ {
			draw -= chosen[i].weight
		}
		t := chosen[i]
		f := Fault{At: at, For: min(between(shortest, longest), duration-at), Target: t.name, Kind: t.kinds[random.IntN(len(t.kinds))]}
		if open >= atOnce || busy[t.name] > at || busy[Servers] > at || t.name == Servers && open > 0 {
			continue
		}
		busy[t.name] = f.At + f.For + gapShortest
		plan = append(plan, f)
	}
}

// delayOf is how late bytes are under Delay.
const delayOf = 120 * time.Millisecond

// begin makes a fault happen and returns what ends it.
func (c *Cluster) begin(ctx context.Context, f Fault) (heal func() error, err error) {
	none := func() error { return nil }
	if proxy := c.Proxies[f.Target]; proxy != nil {
		switch f.Kind {
		case CutOff:
			proxy.Cut()
		case Stall:
			proxy.Stall()
		case Delay:
			proxy.Delay(delayOf)
		}
		return func() error { proxy.Heal(); return nil }, nil
	}
	switch f.Target {
	case Servers:
		return none, c.takeOver(ctx, f.For)
	case NATS:
		c.NATS.Stop()
		return c.NATS.Restart, nil
	case Primary, Replica:
		return c.beginServer(ctx, f)
	}
	process := c.Process(f.Target)
	switch f.Kind {
	case Kill:
		return process.Start, process.End(syscall.SIGKILL)
	case Restart:
		if err := process.End(syscall.SIGTERM); err != nil {
			return process.Start, err
		}
		return none, process.Start()
	default:
		return func() error { return process.Signal(syscall.SIGCONT) }, process.Signal(syscall.SIGSTOP)
	}
}

func (c *Cluster) beginServer(ctx context.Context, f Fault) (heal func() error, err error) {
	server := c.Primary
	if f.Target == Replica {
		server = c.Replica
	}
	start := func() error { return startServer(ctx, server) }
	switch f.Kind {
	case Kill:
		return start, server.Kill()
	case Restart:
		return start, server.Stop(pglocal.Fast)
	case NoReplay:
		return func() error { return c.Exec(ctx, server.URL("postgres"), "SELECT pg_wal_replay_resume()") },
			c.Exec(ctx, server.URL("postgres"), "SELECT pg_wal_replay_pause()")
	default:
		return server.Resume, server.Pause()
	}
}

// startTries is how often a server is started: one that was just killed may leave
// what the next start trips over, on a busy machine.
const startTries = 3

func startServer(ctx context.Context, server *pglocal.Server) (err error) {
	for range startTries {
		if err = server.Start(ctx); err == nil || server.Running() {
			return err
		}
		time.Sleep(time.Second)
	}
	return err
}

// Run carries out a schedule and returns when every fault is healed. told is
// called at the begin of each.
func (c *Cluster) Run(ctx context.Context, plan []Fault, told func(Fault)) error {
	begun := time.Now()
	type event struct {
		fault Fault
		err   error
	}
	done := make(chan event)
	running := 0
	var failure error
	finish := func() {
		e := <-done
		running--
		if e.err != nil && failure == nil {
			failure = fmt.Errorf("%s: %w", e.fault, e.err)
		}
	}
	for _, f := range plan {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(begun.Add(f.At))):
			told(f)
			running++
			go func() { done <- event{f, c.carryOut(ctx, f)} }()
		}
	}
	for running > 0 {
		finish()
	}
	return failure
}

// carryOut begins a fault, waits, and heals it, also when ctx ends. A failover has
// the cluster to itself, as what it takes depends on the machine: what is due
// meanwhile happens later.
func (c *Cluster) carryOut(ctx context.Context, f Fault) error {
	if f.Kind == Takeover {
		c.servers.Lock()
		defer c.servers.Unlock()
	} else {
		c.servers.RLock()
		defer c.servers.RUnlock()
	}
	healing := context.WithoutCancel(ctx)
	heal, err := c.begin(healing, f)
	if err == nil && f.Kind != Takeover {
		select {
		case <-ctx.Done():
		case <-time.After(f.For):
		}
	}
	if heal != nil {
		if healed := heal(); err == nil {
			err = healed
		}
	}
	return err
}
