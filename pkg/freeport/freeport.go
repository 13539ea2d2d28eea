// Package freeport picks loopback ports for servers that tests and the dev stack start themselves.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The range lies below the one from which kernels take ports for whoever asks for any, so that a server that stops and
// starts again on the same port does not find it taken by some other program in between.
const (
	lowest  = 15000
	highest = 32000
	tries   = 200
)

// marks are the UDP sockets by which other processes see which ports this one picked. The system removes them when the
// process ends, however it ends.
var marks struct {
	sync.Mutex
	sockets []*net.UDPConn
}

// Pick returns a TCP port that is free on 127.0.0.1 and that no other Pick returns, in this process or in another, until
// this process ends: tests of many packages run side by side, and one that stops a server must find nobody else there. A
// program that does not ask Pick can still take the port: who listens on it picks again when that fails.
func Pick() (int, error) {
	var last error
	for range tries {
		port := lowest + rand.IntN(highest-lowest)
		if last = mark(port); last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("find a free port between %d and %d: %w", lowest, highest, last)
}

// mark makes the port this process's own if it is free.
func mark(port int) error {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return err
	}
	if err := Check(port); err != nil {
		return errors.Join(err, socket.Close())
	}
	marks.Lock()
	defer marks.Unlock()
	marks.sockets = append(marks.sockets, socket)
	return nil
}

// Listen listens on a port that Pick returns. The port stays this process's own when the listener is closed.
func Listen() (net.Listener, error) {
	var last error
	for range tries {
		port, err := Pick()
		if err != nil {
			return nil, err
		}
		listener, err := net.Listen("tcp4", address(port))
		if err == nil {
			return listener, nil
		}
		last = err
	}
	return nil, last
}

// Check returns an error when nothing can listen on the port of 127.0.0.1 now.
func Check(port int) error {
	listener, err := net.Listen("tcp4", address(port))
	if err != nil {
		return err
	}
	return listener.Close()
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
