package attack

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"
)

// bodyAttacks send messages that are large, that claim to be, or that never come.
var bodyAttacks = []Attack{
	{Name: "promised-bodies", Faults: "C1", What: "2,048 calls that promise 25 MiB and send 2 bytes a second", run: promisedBodies},
	{Name: "bombs", Faults: "C3", What: "160 native calls of 25 kB that inflate to 25 MiB, again and again", run: bombs},
	{Name: "web-bombs", Faults: "C3", What: "100 gRPC-Web calls of 25 kB that inflate to 25 MiB, again and again", run: webBombs},
	{Name: "json-bombs", Faults: "C3", What: "40 calls of 2 kB of JSON that are half a million objects, again and again", run: jsonBombs},
	{Name: "unfinished-web-bodies", Faults: "C3", What: "130 gRPC-Web bodies of 24 MiB whose last byte does not come", run: unfinishedWebBodies},
	{Name: "just-uncounted", Faults: "C3", What: "2,000 calls whose message of 64 KiB lacks its last byte", run: justUncounted},
	{Name: "long-messages", Faults: "C4, C11", What: "calls that promise a byte more than may be, native and gRPC-Web, 10 at a time of each", run: longMessages},
	{Name: "silent-calls", Faults: "C10", What: "10,000 calls whose message never begins", run: silentCalls},
}

// stalled begins calls whose bodies begin like this, and then goes on with a byte
// of them every half second, or not at all.
func (c *crowd) stalled(connections, calls int, first []byte, trickle bool) {
	header := c.header(publish)
	c.comes(connections, time.Second, 65535, true, func(h *connection) {
		var begun []uint32
		for range calls {
			id := h.open(header)
			if id == 0 || !h.send(id, first, false) {
				break
			}
			begun = append(begun, id)
		}
		for trickle && c.rest(500*time.Millisecond) && !h.isOver() {
			for _, id := range begun {
				h.send(id, []byte{0}, false) // fails for those that were ended
			}
		}
		h.wait()
	})
}

func promisedBodies(c *crowd) {
	c.stalled(21, 98, append(prefix(largestMessage, false), 0x0a), true)
}

func justUncounted(c *crowd) {
	const length = 64 << 10
	c.stalled(21, 98, append(prefix(length, false), make([]byte, length-1)...), false)
}

// bomb is a gRPC message of some kilobytes that inflates to the largest there may be.
var bomb = sync.OnceValue(func() []byte {
	content := zipped(make([]byte, largestMessage))
	return append(prefix(len(content), true), content...)
})

func bombs(c *crowd) {
	header := c.header(publish, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"})
	c.comes(4, 100*time.Millisecond, 65535, true, func(h *connection) {
		h.places = make(chan struct{}, 40)
		for {
			if id := h.open(header); id == 0 || !h.send(id, bomb(), true) && h.isOver() {
				return
			}
		}
	})
}

func webBombs(c *crowd) { c.repeated(100, web, bomb(), "Grpc-Encoding: gzip") }

// half a million objects, in the least JSON that says so.
var objects = sync.OnceValue(func() []byte {
	return zipped([]byte(`{"queries":[` + strings.Repeat("{},", 500_000) + `{}]}`))
})

func jsonBombs(c *crowd) { c.repeated(40, asJSON, objects(), "Content-Encoding: gzip") }

// repeated sends the same request over and over by HTTP/1.1 and reads the answers.
func (c *crowd) repeated(clients int, contentType string, body []byte, more ...string) {
	c.visits(clients, 10*time.Millisecond, http1, func(conn net.Conn) {
		if c.post(conn, query, contentType, len(body), more...) && c.body(conn, body) {
			c.answer(conn)
		}
	})
}

func unfinishedWebBodies(c *crowd) {
	const length = 24 << 20
	part := bytes.Repeat(nothing, 32<<10)
	c.visits(130, time.Second, http1, func(conn net.Conn) {
		sent := c.post(conn, publish, web, 5+length) && c.body(conn, prefix(length, false))
		for rest := length - len(part); sent && rest > 0; rest -= len(part) {
			sent = c.body(conn, part)
		}
		c.answer(conn) // of a gateway that waits no longer
	})
}

// longMessages are refused by what they promise.
func longMessages(c *crowd) {
	header, first := c.header(publish), append(prefix(largestMessage+1, false), make([]byte, 1024)...)
	c.comes(1, 100*time.Millisecond, 65535, true, func(h *connection) {
		h.places = make(chan struct{}, 10)
		for c.rest(10 * time.Millisecond) {
			if id := h.open(header); id == 0 || !h.send(id, first, false) && h.isOver() {
				return
			}
		}
	})
	c.visits(10, 100*time.Millisecond, http1, func(conn net.Conn) {
		if c.post(conn, publish, web, largestMessage+6) && c.body(conn, first) {
			c.answer(conn)
		}
	})
}

func silentCalls(c *crowd) { c.stalled(100, openStreams, nil, false) }
