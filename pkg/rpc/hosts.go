package rpc

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/resolver"
)

const (
	hostsScheme = "hosts"
	// lookupInterval is how often host names are looked up again, and how long
	// one lookup may take.
	lookupInterval = 5 * time.Second
	// lookupPause is the shortest time between two lookups.
	lookupPause = 500 * time.Millisecond
)

// hosts resolves a fixed list of host:port. It implements resolver.Builder.
type hosts []hostPort

type hostPort struct{ host, port string }

func parseHosts(list string) (hosts, error) {
	var parsed hosts
	for endpoint := range strings.SplitSeq(list, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(endpoint))
		if err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("endpoint %q is not host:port", endpoint)
		}
		parsed = append(parsed, hostPort{host, port})
	}
	return parsed, nil
}

func (hosts) Scheme() string { return hostsScheme }

// Build starts the lookups; Close of the returned resolver ends them.
func (h hosts) Build(_ resolver.Target, conn resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &hostsResolver{hosts: h, conn: conn, cancel: cancel, now: make(chan struct{}, 1), known: map[string][]string{}}
	r.running.Go(func() { r.run(ctx) })
	return r, nil
}

type hostsResolver struct {
	hosts   hosts
	conn    resolver.ClientConn
	cancel  context.CancelFunc
	running sync.WaitGroup
	now     chan struct{}
	// known is the last good answer for each host name: a name server that is
	// away takes no instance away.
	known map[string][]string
}

// ResolveNow asks for a lookup soon.
func (r *hostsResolver) ResolveNow(resolver.ResolveNowOptions) {
	select {
	case r.now <- struct{}{}:
	default:
	}
}

// Close ends the lookups and waits for them.
func (r *hostsResolver) Close() {
	r.cancel()
	r.running.Wait()
}

func (r *hostsResolver) run(ctx context.Context) {
	var last []string
	for {
		addresses, err := r.lookup(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case len(addresses) == 0:
			r.conn.ReportError(err)
		case !slices.Equal(addresses, last):
			last = addresses
			// An error here only says that the balancer wants another answer soon.
			_ = r.conn.UpdateState(stateOf(addresses))
		}
		if !pause(ctx, lookupPause, nil) || !pause(ctx, lookupInterval-lookupPause, r.now) {
			return
		}
	}
}

func (r *hostsResolver) lookup(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupInterval)
	defer cancel()
	var addresses []string
	var failure error
	for _, h := range r.hosts {
		found := []string{h.host}
		if _, err := netip.ParseAddr(h.host); err != nil {
			answer, err := net.DefaultResolver.LookupHost(ctx, h.host)
			if err == nil {
				r.known[h.host] = answer
			} else {
				failure = err
			}
			found = r.known[h.host]
		}
		for _, address := range found {
			addresses = append(addresses, net.JoinHostPort(address, h.port))
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses), failure
}

func stateOf(addresses []string) resolver.State {
	var state resolver.State
	for _, address := range addresses {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: address}}})
	}
	return state
}

// pause waits for d, or less when early is signalled. It reports whether ctx is
// still alive.
func pause(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-early:
	}
	return true
}
