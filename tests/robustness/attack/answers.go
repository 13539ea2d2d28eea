package attack

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// answerAttacks ask for much and take little of it.
var answerAttacks = []Attack{
	{Name: "unread-answers", Faults: "A1, C2", What: "1 connection, 100 queries of 24 MiB, no window", run: func(c *crowd) { c.unread(1, 0) }},
	{Name: "unread-answers-1000", Faults: "A1, C2", What: "1,000 connections, 100 queries of 24 MiB each, no window", run: func(c *crowd) { c.unread(1000, 0) }, Crowded: true},
	{Name: "standing-answers", Faults: "A1, C2", What: "100 connections that take 64 KiB of an answer of 24 MiB and stand still", run: func(c *crowd) { c.unread(100, 65535) }},
	{Name: "unread-web-answers", Faults: "C2", What: "100 gRPC-Web queries of 24 MiB whose answers are not taken", run: unreadWeb},
	{Name: "slow-pages", Faults: "C6", What: "60 clients that take pages of 24 MiB, 1 MiB a second each", run: slowPages},
	{Name: "slow-streams", Faults: "C2", What: "100 streams of a topic of 24 MiB that take 64 KiB", run: slowStreams},
}

// unread asks on each connection for 100 pages, and gives each so much window.
func (c *crowd) unread(connections int, window uint32) {
	header, body := c.header(query), framed(c.page())
	c.comes(connections, time.Second, window, false, func(h *connection) {
		for range openStreams {
			if id := h.open(header); id == 0 || !h.send(id, body, true) {
				break
			}
		}
		h.wait()
	})
}

func unreadWeb(c *crowd) {
	body := framed(c.page())
	c.visits(100, time.Second, http1, func(conn net.Conn) {
		if c.post(conn, query, web, len(body)) && c.body(conn, body) {
			<-c.ctx.Done()
		}
	})
}

// slowPages reads as a phone does: all of it, but not at once.
func slowPages(c *crowd) {
	body := framed(c.page())
	c.visits(60, 100*time.Millisecond, http1, func(conn net.Conn) {
		if !c.post(conn, query, web, len(body)) || !c.body(conn, body) {
			return
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			c.ended("connection closed")
			return
		}
		for err == nil && c.rest(100*time.Millisecond) {
			var n int64
			n, err = io.CopyN(io.Discard, response.Body, 100<<10)
			c.note(func(o *Outcome) { o.Received += n })
		}
		_ = response.Body.Close()
	})
}

func slowStreams(c *crowd) {
	header := c.header(static)
	body := framed(encoded(&backendv1.SubscribeStaticRequest{Topics: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(c.target.Topic)}}}}))
	c.comes(100, time.Second, 65535, false, func(h *connection) {
		if id := h.open(header); id != 0 {
			h.send(id, body, true)
		}
		h.wait()
	})
}
