package front

import (
	"net"
	"sync"
	"time"
)

const (
	mixedPeersKept = 1024
	mixedPeersFor  = time.Hour
)

// mixedPeers remembers the proxies that carried native gRPC and gRPC-Web on one
// connection: their next connections go to net/http, which serves both.
type mixedPeers struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func newMixedPeers() *mixedPeers { return &mixedPeers{until: map[string]time.Time{}} }

func (m *mixedPeers) add(peer net.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.until) >= mixedPeersKept {
		clear(m.until) // they are learned again with one refused call each
	}
	m.until[hostOf(peer)] = time.Now().Add(mixedPeersFor)
}

func (m *mixedPeers) has(peer net.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Before(m.until[hostOf(peer)])
}

// hostOf leaves the port out: a proxy has a new one for each connection.
func hostOf(peer net.Addr) string {
	host, _, err := net.SplitHostPort(peer.String())
	if err != nil {
		return peer.String()
	}
	return host
}
