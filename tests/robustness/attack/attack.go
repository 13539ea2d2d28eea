// Package attack holds clients that mean harm: each attack is one way in which an
// anonymous caller could take a gateway, or a role behind it, past its memory or
// away from its other clients. Every attack is bounded in connections, calls and
// time, reaches nothing but this machine, and stops by itself.
//
// They run as a process of their own (attack/cmd) at the lowest priority, so that
// what they spend is not taken from those that they attack.
package attack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Target is what is attacked.
type Target struct {
	// Address is a host:port of this machine: a gateway, or a proxy in front of it.
	Address string
	// TLS says that the target speaks HTTPS; its certificate is not looked at.
	TLS bool
	// Topic holds envelopes that fill a page: its answers are about 24 MiB.
	Topic topic.Topic
}

// Attack is one kind of attack.
type Attack struct {
	// Name is the attack's on the command line, Faults the letters of the faults
	// that it is made of, What is one line about it.
	Name, Faults, What string
	run                func(*crowd)
	// Crowded is an attack that takes a while to build up: a part of long ones.
	Crowded bool
}

// All are the attacks, in the order of their letters.
func All() []Attack {
	return slices.Concat(answerAttacks, bodyAttacks, frameAttacks, connectionAttacks, publishAttacks)
}

// Named is the attack with a name.
func Named(name string) (Attack, error) {
	all := All()
	at := slices.IndexFunc(all, func(a Attack) bool { return a.Name == name })
	if at < 0 {
		return Attack{}, fmt.Errorf("there is no attack named %q", name)
	}
	return all[at], nil
}

// longest bounds every attack, whatever it was told.
const longest = 2 * time.Minute

// Run attacks for a while and says what came of it.
func (a Attack) Run(ctx context.Context, target Target, duration time.Duration) (Outcome, error) {
	host, _, err := net.SplitHostPort(target.Address)
	if err != nil {
		return Outcome{}, err
	}
	if host != "127.0.0.1" {
		return Outcome{}, errors.New("attacks are for 127.0.0.1 only")
	}
	ctx, cancel := context.WithTimeout(ctx, min(duration, longest))
	defer cancel()
	c := &crowd{ctx: ctx, target: target, outcome: Outcome{Told: map[string]int{}, Ended: map[string]int{}}}
	a.run(c)
	c.clients.Wait()
	return c.result(), nil
}

// Outcome is what the attackers saw.
type Outcome struct {
	// Connections were opened; of those that ended before the attack did, Ended has
	// the ways in which they did.
	Connections int
	Ended       map[string]int
	// Calls were begun. Told counts those that were answered by their status code,
	// as metrics name it; streams that were reset count in Ended.
	Calls int
	Told  map[string]int
	// Sent and Received are bytes of messages.
	Sent, Received int64
}

// crowd is the clients of one attack.
type crowd struct {
	ctx     context.Context
	target  Target
	clients sync.WaitGroup

	mu      sync.Mutex
	outcome Outcome
}

// visits has n clients at once, each of which opens a connection, talks on it and,
// when it is over before the attack is, comes back a pause later.
func (c *crowd) visits(n int, pause time.Duration, protocol string, talk func(conn net.Conn)) {
	for range n {
		c.clients.Go(func() {
			for c.ctx.Err() == nil {
				if conn := c.dial(protocol); conn != nil {
					talk(conn)
					_ = conn.Close()
				}
				c.rest(pause)
			}
		})
	}
}

// comes is visits by HTTP/2. window is what each stream gives its answers; with
// reads it is given again and again.
func (c *crowd) comes(n int, pause time.Duration, window uint32, reads bool, talk func(h *connection)) {
	c.visits(n, pause, http2.NextProtoTLS, func(conn net.Conn) {
		h := c.speak(conn, window, reads)
		talk(h)
	})
}

// rest waits and says whether the attack goes on.
func (c *crowd) rest(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (c *crowd) note(what func(*Outcome)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what(&c.outcome)
}

func (c *crowd) told(code string) { c.note(func(o *Outcome) { o.Told[code]++ }) }

// ended notes the end of a connection or a stream, unless the attack is over.
func (c *crowd) ended(how string) {
	if c.ctx.Err() == nil {
		c.note(func(o *Outcome) { o.Ended[how]++ })
	}
}

func (c *crowd) result() Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outcome
}
