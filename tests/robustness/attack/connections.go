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
	const workers = 50
	c.each(workers, func(int) {
		c.again(time.Second, func() {
			for range connections / workers {
				if c.ctx.Err() != nil {
					return
				}
				if h := c.connect(65535, true); h != nil {
					c.clients.Go(h.wait)
				}
			}
			<-c.ctx.Done()
		})
	})
}

func registrations(c *crowd) {
	const streams, topics = 60, 100_000
	header := c.header(subscribe, native)
	c.each(1, func(int) {
		c.again(time.Second, func() {
			h := c.connect(1<<20, true)
			if h == nil {
				return
			}
			c.each(streams, func(i int) {
				id := h.open(header, false)
				if id == 0 {
					return
				}
				update := &backendv1.SubscribeRequest_Update{Id: uint64(i + 1), Adds: someTopics(topics)}
				h.send(id, framed(encoded(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: update}})), false)
			})
			h.wait()
		})
	})
}
