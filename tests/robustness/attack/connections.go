package attack

import (
	"time"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// connectionAttacks are many of something that is cheap to open.
var connectionAttacks = []Attack{
	{Name: "connections", Faults: "C13", What: "5,000 connections that do nothing", run: func(c *crowd) { c.idle(5000) }},
	{Name: "registrations", Faults: "C5", What: "1 connection, 60 streams of 100,000 topics each", run: registrations},
}

func (c *crowd) idle(connections int) {
	c.comes(connections, time.Second, 65535, true, (*connection).wait)
}

func registrations(c *crowd) {
	const streams, topics = 60, 100_000
	header := c.header(subscribe)
	c.comes(1, time.Second, 1<<20, true, func(h *connection) {
		for i := range streams {
			c.clients.Go(func() {
				id := h.open(header)
				if id == 0 {
					return
				}
				update := &backendv1.SubscribeRequest_Update{Id: uint64(i + 1), Adds: someTopics(topics)}
				h.send(id, framed(encoded(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: update}})), false)
			})
		}
		h.wait()
	})
}
