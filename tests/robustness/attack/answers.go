package attack

import (
	"bufio"
	"io"
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
	header, body := c.header(query, native), framed(c.page())
	c.each(connections, func(int) {
		c.again(time.Second, func() {
			h := c.connect(window, false)
			if h == nil {
				return
			}
			for range openStreams {
				if id := h.open(header, false); id == 0 || !h.send(id, body, true) {
					break
				}
			}
			h.wait()
		})
	})
}

func unreadWeb(c *crowd) {
	body := framed(c.page())
	c.each(100, func(int) {
		c.again(time.Second, func() {
			conn := c.dial("http/1.1")
			if conn == nil {
				return
			}
			defer conn.Close()
			if c.post(conn, query, web, len(body)) && c.body(conn, body) {
				<-c.ctx.Done()
			}
		})
	})
}

// slowPages reads as a phone does: all of it, but not at once.
func slowPages(c *crowd) {
	body := framed(c.page())
	c.each(60, func(int) {
		c.again(100*time.Millisecond, func() {
			conn := c.dial("http/1.1")
			if conn == nil {
				return
			}
			defer conn.Close()
			if !c.post(conn, query, web, len(body)) || !c.body(conn, body) {
				return
			}
			buffered := bufio.NewReader(conn)
			response, err := http.ReadResponse(buffered, nil)
			if err != nil {
				c.ended("connection closed")
				return
			}
			defer response.Body.Close()
			for {
				n, err := io.CopyN(io.Discard, response.Body, 100<<10)
				c.note(func(o *Outcome) { o.Received += n })
				if err != nil || !c.rest(100*time.Millisecond) {
					break
				}
			}
		})
	})
}

func slowStreams(c *crowd) {
	header := c.header(static, native)
	body := framed(encoded(&backendv1.SubscribeStaticRequest{Topics: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(c.target.Topic)}}}}))
	c.each(100, func(int) {
		c.again(time.Second, func() {
			if h := c.connect(65535, false); h != nil {
				if id := h.open(header, false); id != 0 {
					h.send(id, body, true)
				}
				h.wait()
			}
		})
	})
}
