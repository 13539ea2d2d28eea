package publisher_test

import (
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/freeport"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
)

// proxy is a name that can be made to lead to another server.
type proxy struct {
	listener net.Listener

	mu     sync.Mutex
	server *pglocal.Server
	conns  map[net.Conn]struct{}
	done   sync.WaitGroup
}

func newProxy(t *testing.T, server *pglocal.Server) *proxy {
	t.Helper()
	listener, err := freeport.Listen()
	require.NoError(t, err)
	p := &proxy{listener: listener, server: server, conns: map[net.Conn]struct{}{}}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.lead(nil)
		p.done.Wait()
	})
	return p
}

func (p *proxy) url(database string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	u, err := url.Parse(p.server.URL(database))
	if err != nil {
		panic(err)
	}
	u.Host = p.listener.Addr().String()
	return u.String()
}

// lead sends connections to another server from now on, and cuts the old ones.
func (p *proxy) lead(server *pglocal.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
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
		p.connect(in)
	}
}

func (p *proxy) connect(in net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		_ = in.Close()
		return
	}
	out, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.server.Port())))
	if err != nil {
		_ = in.Close()
		return
	}
	p.conns[in], p.conns[out] = struct{}{}, struct{}{}
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		p.done.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
}
