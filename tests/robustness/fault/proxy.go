package fault

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// Proxy stands between two parts on TCP and can break the way.
type Proxy struct {
	listener net.Listener
	target   string
	wait     sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change of mode
	cut     bool
	stalled bool
	delay   time.Duration
	open    map[net.Conn]bool
	closed  bool
}

// StartProxy listens on loopback and forwards to target.
func StartProxy(target string) (*Proxy, error) {
	listener, err := freeport.Listen()
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, target: target, changed: make(chan struct{}), open: map[net.Conn]bool{}}
	p.wait.Go(p.accept)
	return p, nil
}

// Address is where clients connect.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Ports are the proxy's own ends of its open connections to the target.
func (p *Proxy) Ports() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ports []int
	for conn := range p.open {
		if conn.RemoteAddr().String() == p.target {
			ports = append(ports, conn.LocalAddr().(*net.TCPAddr).Port)
		}
	}
	return ports
}

// Cut ends all connections and refuses new ones until Heal.
func (p *Proxy) Cut() {
	p.set(func() {
		p.cut = true
		for conn := range p.open {
			_ = conn.Close()
		}
	})
}

// Stall keeps connections open and passes nothing on until Heal.
func (p *Proxy) Stall() { p.set(func() { p.stalled = true }) }

// Delay holds back everything for a while, in both directions.
func (p *Proxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// Retarget sends new connections elsewhere and ends those that are open.
func (p *Proxy) Retarget(target string) {
	p.set(func() {
		p.target = target
		for conn := range p.open {
			_ = conn.Close()
		}
	})
}

// Heal undoes all faults.
func (p *Proxy) Heal() { p.set(func() { p.cut, p.stalled, p.delay = false, false, 0 }) }

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Close ends the proxy and all its connections.
func (p *Proxy) Close() {
	p.set(func() { p.closed, p.cut, p.stalled, p.delay = true, true, false, 0 })
	_ = p.listener.Close()
	p.Cut()
	p.wait.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		server, err := net.DialTimeout("tcp", target, time.Second)
		if err != nil || !p.admit(client, server) {
			_ = client.Close()
			if server != nil {
				_ = server.Close()
			}
			continue
		}
		p.wait.Go(func() { p.carry(client, server) })
		p.wait.Go(func() { p.carry(server, client) })
	}
}

func (p *Proxy) admit(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut || p.closed {
		return false
	}
	for _, conn := range conns {
		p.open[conn] = true
	}
	return true
}

// carry copies one direction and ends both when it ends.
func (p *Proxy) carry(from, to net.Conn) {
	defer func() {
		_, _ = from.Close(), to.Close()
		p.mu.Lock()
		delete(p.open, from)
		p.mu.Unlock()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			p.hold()
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				p.hold()
			}
			return
		}
	}
}

// hold returns when bytes may pass.
func (p *Proxy) hold() {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay)
	}
	for {
		p.mu.Lock()
		stalled, changed := p.stalled && !p.cut, p.changed
		p.mu.Unlock()
		if !stalled {
			return
		}
		<-changed
	}
}
