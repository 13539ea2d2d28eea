package streamer_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
)

// proxy is an address that can be made to lead to another server.
type proxy struct {
	listener net.Listener
	first    int

	mu    sync.Mutex
	port  int
	conns map[net.Conn]struct{}
	gone  bool
	done  sync.WaitGroup
}

func newProxy(t *testing.T, port int) *proxy {
	t.Helper()
	listener, err := freeport.Listen()
	require.NoError(t, err)
	p := &proxy{listener: listener, first: port, port: port, conns: map[net.Conn]struct{}{}}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		p.gone = true
		p.cut()
		p.mu.Unlock()
		p.done.Wait()
	})
	return p
}

// url is the server's URL through the proxy.
func (p *proxy) url(server string) string {
	port := p.listener.Addr().(*net.TCPAddr).Port
	return strings.Replace(server, fmt.Sprintf(":%d/", p.first), fmt.Sprintf(":%d/", port), 1)
}

// lead sends connections to another server from now on and cuts the old ones.
func (p *proxy) lead(port int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.port = port
	p.cut()
}

func (p *proxy) cut() {
	for conn := range p.conns {
		_ = conn.Close()
	}
	clear(p.conns)
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		out, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.port))
		if err != nil || p.gone {
			_ = in.Close()
			p.mu.Unlock()
			continue
		}
		p.conns[in], p.conns[out] = struct{}{}, struct{}{}
		p.mu.Unlock()
		pass := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			_ = to.Close()
			_ = from.Close()
		}
		p.done.Go(func() { pass(in, out) })
		p.done.Go(func() { pass(out, in) })
	}
}
