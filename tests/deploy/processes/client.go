package processes

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Client repeats unary calls that ended with UNAVAILABLE, as published clients
// do, and keeps count of how calls failed.
type Client struct {
	grpc.ClientConnInterface

	mu       sync.Mutex
	phase    string
	failures map[string]map[codes.Code]int
}

// NewClient uses a connection to the gateways.
func NewClient(connection grpc.ClientConnInterface) *Client {
	return &Client{ClientConnInterface: connection, failures: map[string]map[codes.Code]int{}}
}

// patience is how long a call is repeated, and pause the time between.
const (
	patience = 20 * time.Second
	pause    = 50 * time.Millisecond
)

// Invoke is a call with its repetitions.
func (c *Client) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	begun := time.Now()
	for {
		err := c.ClientConnInterface.Invoke(ctx, method, args, reply, options...)
		if err == nil || ctx.Err() != nil { // who gives a call up has not seen it fail
			return err
		}
		c.count(status.Code(err))
		if status.Code(err) != codes.Unavailable || time.Since(begun) > patience {
			return err
		}
		time.Sleep(pause)
	}
}

// Phase names what goes on from now on.
func (c *Client) Phase(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = name
}

func (c *Client) count(code codes.Code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures[c.phase] == nil {
		c.failures[c.phase] = map[codes.Code]int{}
	}
	c.failures[c.phase][code]++
}

// Failures is how many unary calls failed in each phase, by code.
func (c *Client) Failures() map[string]map[codes.Code]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures
}
