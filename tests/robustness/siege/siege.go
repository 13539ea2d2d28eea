package siege

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/robustness/attack"
)

// Siege is a fleet with an entrance that is attacked and probed.
type Siege struct {
	Fleet *Fleet
	// Entrance is the gateway's address, or that of a proxy in front of it, which
	// then shows a certificate that Transport accepts.
	Entrance  string
	Transport credentials.TransportCredentials
	// Proxied says that it is a proxy's.
	Proxied bool
	// Quiet is how long the probe measures before an attack, Attack how long that is.
	Quiet, Attack time.Duration
	// Topic holds a page of 24 MiB: see FillTopic.
	Topic string // hex
}

// FillTopic publishes as many bytes as an answer may have to a topic.
func FillTopic(ctx context.Context, f *Fleet) (topic string, err error) {
	conn, err := grpc.NewClient(f.Roles["gateway"].Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	kit := testkit.New(24)
	group := kit.Group()
	const envelopes, size = 24, 1<<20 - 512
	for range envelopes {
		request := &backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{kit.GroupMessage(group, size)}}
		if _, err := backendv1.NewPublishServiceClient(conn).Publish(ctx, request); err != nil {
			return "", fmt.Errorf("fill a topic: %w", err)
		}
	}
	return hex.EncodeToString([]byte(group.Topic())), nil
}

// Result is what one attack, or several at once, did.
type Result struct {
	Attack  string
	Faults  string
	Proxied bool
	// Quiet is the probe before the attack, During beside it.
	Quiet, During *Sample
	// Peak is the most memory that each role had resident, in bytes; Killed are
	// those that had more than their pods may.
	Peak   map[string]int64
	Limit  map[string]int64
	Killed []string
	// Outcomes are what the attackers saw, Refused what the gateway's metrics say of
	// calls that did not end well, by their code.
	Outcomes []attack.Outcome
	Refused  map[string]float64
	// Back is how long it took until everything that the attack had taken was given
	// back; NotBack what was not, a minute later.
	Back    time.Duration
	NotBack []string
}

// backWithin is how long it may take until an attack has left no trace.
const backWithin = time.Minute

// Run carries out attacks, all at once, and waits until their traces are gone.
func (s *Siege) Run(ctx context.Context, attacks ...attack.Attack) (_ *Result, err error) {
	r := &Result{Proxied: s.Proxied, Peak: map[string]int64{}, Limit: map[string]int64{}}
	for _, a := range attacks {
		r.Attack, r.Faults = join(r.Attack, a.Name), join(r.Faults, a.Faults)
	}
	probe, err := StartProbe(ctx, s.Entrance, s.Transport)
	if err != nil {
		return nil, err
	}
	defer probe.Stop()
	time.Sleep(10 * probeEvery) // until its connection and its plans are warm
	probe.Next()
	if _, err := s.fresh(ctx); err != nil {
		return nil, err
	}
	time.Sleep(s.Quiet)
	r.Quiet = probe.Next()
	quiet, err := s.state(ctx)
	if err != nil {
		return nil, err
	}
	r.Outcomes, err = s.attackers(ctx, attacks)
	if err != nil {
		return nil, err
	}
	r.During = probe.Next()
	if r.Killed, err = s.collect(ctx, r); err != nil || len(r.Killed) > 0 {
		return r, err
	}
	return r, s.await(ctx, r, quiet)
}

func join(list, one string) string { return strings.TrimPrefix(list+" + "+one, " + ") }

// fresh begins to measure memory anew, and lets who was killed serve again.
func (s *Siege) fresh(ctx context.Context) (killed []string, err error) {
	var errs []error
	for _, name := range Roles {
		_, dead, err := s.Fleet.Roles[name].fresh()
		if dead {
			killed = append(killed, name)
		}
		errs = append(errs, err)
	}
	return killed, errors.Join(append(errs, s.Fleet.ready(ctx))...)
}

// collect notes the peaks.
func (s *Siege) collect(ctx context.Context, r *Result) (killed []string, err error) {
	for name, role := range s.Fleet.Roles {
		role.memory.mu.Lock()
		r.Peak[name], r.Limit[name] = role.memory.peak, role.Limit
		role.memory.mu.Unlock()
	}
	return s.fresh(ctx)
}

// attackers runs each attack as a process of the lowest priority: the machine's
// cores are for those that are attacked and for the probe.
func (s *Siege) attackers(ctx context.Context, attacks []attack.Attack) ([]attack.Outcome, error) {
	type end struct {
		output []byte
		err    error
	}
	ends := make([]chan end, len(attacks))
	for i, a := range attacks {
		ends[i] = make(chan end, 1)
		command := exec.CommandContext(ctx, "nice", "-n", "19", attackProgram(s.Fleet.binaries), "-attack", a.Name, "-for", s.Attack.String(),
			"-target", s.Entrance, "-topic", s.Topic, fmt.Sprintf("-tls=%t", s.Proxied))
		go func() {
			output, err := command.Output()
			if stderr := new(exec.ExitError); errors.As(err, &stderr) {
				err = fmt.Errorf("%w: %s", err, stderr.Stderr)
			}
			ends[i] <- end{output, err}
		}()
	}
	outcomes := make([]attack.Outcome, len(attacks))
	var errs []error
	for i := range attacks {
		e := <-ends[i]
		if e.err == nil {
			e.err = json.Unmarshal(e.output, &outcomes[i])
		}
		errs = append(errs, e.err)
	}
	return outcomes, errors.Join(errs...)
}

// state is what a role holds, by the name of each thing, and for the gateway how
// many calls ended with which code.
type state struct {
	held  map[string]float64
	codes map[string]float64
}

func (s *Siege) state(ctx context.Context) (state, error) {
	now := state{held: map[string]float64{}}
	for name, role := range s.Fleet.Roles {
		all, err := role.metrics(ctx)
		if err != nil {
			return state{}, err
		}
		for budget, bytes := range all.by("xmtp_budget_used_bytes", "budget") {
			now.held[name+" budget "+budget] = bytes
		}
		now.held[name+" calls"] = all.sum("grpc_server_in_flight")
		now.held[name+" files"] = all.sum("process_open_fds")
		now.held[name+" goroutines"] = all.sum("go_goroutines")
		if name == "gateway" {
			now.codes = all.by("grpc_server_handled_total", "grpc_code")
		}
	}
	return now, nil
}

// slack is what may come and go without an attack.
func slack(thing string) float64 {
	switch {
	case strings.Contains(thing, " budget "):
		return 4 << 20
	case strings.HasSuffix(thing, "goroutines"):
		return 100
	default: // files, calls
		return 20
	}
}

// await waits until the roles hold no more than before the attack.
func (s *Siege) await(ctx context.Context, r *Result, before state) error {
	begun := time.Now()
	for {
		now, err := s.state(ctx)
		if err != nil {
			return err
		}
		r.NotBack = nil
		for thing, held := range now.held {
			if extra := held - before.held[thing]; extra > slack(thing) {
				r.NotBack = append(r.NotBack, fmt.Sprintf("%s: %.0f more", thing, extra))
			}
		}
		r.Back = time.Since(begun)
		r.Refused = map[string]float64{}
		for code, n := range now.codes {
			if more := n - before.codes[code]; more > 0 && code != "OK" && !math.IsNaN(more) {
				r.Refused[code] = more
			}
		}
		if len(r.NotBack) == 0 || r.Back > backWithin {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
