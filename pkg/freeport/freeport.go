// Package freeport picks loopback ports for servers that tests and the dev stack start themselves.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The range lies below the one from which kernels take source ports for outgoing connections, so that a server that
// stops and starts again on the same port does not find it taken by some client in between.
const (
	lowest  = 15000
	highest = 32000
	tries   = 200
)

// Pick returns a TCP port that was free on 127.0.0.1 a moment ago. Another process can still take it first: a caller
// that listens on it picks again when that fails.
func Pick() (int, error) {
	var last error
	for range tries {
		port := lowest + rand.IntN(highest-lowest)
		if last = Check(port); last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("find a free port between %d and %d: %w", lowest, highest, last)
}

// Check returns an error when nothing can listen on the port of 127.0.0.1 now.
func Check(port int) error {
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return listener.Close()
}
