package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxInFlight keeps the requests of a connection within the smallest window that
// HTTP/2 starts with, so that no caller has to look after windows.
const maxInFlight = 60 << 10

// connection has callers on one HTTP/2 connection, in one thread that only sends
// and reads, as pgbench does: with grpc-go as the client, what its goroutines cost
// would be a tenth of what is measured.
type connection struct {
	load    *load
	file    *os.File
	in      *bufio.Reader
	reading *http2.Framer
	out     bytes.Buffer
	writing *http2.Framer
	block   bytes.Buffer
	headers *hpack.Encoder
	body    []byte
	next    uint32 // stream
	begun   map[uint32]time.Time
	took    []time.Duration
}

// callOn runs callers on a connection of their own and returns how long each call
// took.
func callOn(ctx context.Context, l *load, callers int, until time.Time) ([]time.Duration, error) {
	file, err := dialBlocking(ctx, l.address)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	c := &connection{load: l, file: file, in: bufio.NewReaderSize(file, 64<<10), next: 1, begun: map[uint32]time.Time{}}
	c.reading = http2.NewFramer(nil, c.in)
	c.reading.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.reading.SetReuseFrames()
	c.writing = http2.NewFramer(&c.out, nil)
	c.headers = hpack.NewEncoder(&c.block)
	c.out.WriteString(http2.ClientPreface)
	const window = 1 << 30 // for all answers of a turn
	if err := errors.Join(c.writing.WriteSettings(), c.writing.WriteWindowUpdate(0, window)); err != nil {
		return nil, err
	}
	for range callers {
		if err := c.call(); err != nil {
			return nil, err
		}
	}
	err = c.converse(until)
	return c.took, err
}

// dialBlocking returns a connection whose reads block their thread, without the
// runtime's poller.
func dialBlocking(ctx context.Context, address string) (*os.File, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the file is a copy
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("%s is reached by a %T, expected TCP", address, conn)
	}
	file, err := tcp.File()
	if err != nil {
		return nil, err
	}
	file.Fd() // makes it blocking
	return file, nil
}

// call queues one request.
func (c *connection) call() error {
	c.block.Reset()
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: "/xmtp.backend.v1.PublishService/Publish"},
		{Name: ":authority", Value: "backend"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		if err := c.headers.WriteField(field); err != nil {
			return err
		}
	}
	id := c.next
	c.next += 2
	c.body = c.load.appendNext(c.body[:0])
	c.begun[id] = time.Now()
	return errors.Join(
		c.writing.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true}),
		c.writing.WriteData(id, true, c.body))
}

// converse reads answers and sends the next requests until the time is over and
// everything is answered.
func (c *connection) converse(until time.Time) error {
	for len(c.begun) > 0 {
		if c.in.Buffered() == 0 {
			if _, err := c.file.Write(c.out.Bytes()); err != nil {
				return err
			}
			c.out.Reset()
		}
		frame, err := c.reading.ReadFrame()
		if err != nil {
			return fmt.Errorf("read from the publisher: %w", err)
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			err = c.headersOf(frame, until)
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = c.writing.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = c.writing.WritePing(true, frame.Data)
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			err = fmt.Errorf("the publisher sent %v, expected an answer", frame)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// headersOf looks at headers or trailers, which end a call.
func (c *connection) headersOf(frame *http2.MetaHeadersFrame, until time.Time) error {
	if !frame.StreamEnded() {
		return nil
	}
	now := time.Now()
	status, message := "", ""
	for _, field := range frame.Fields {
		switch field.Name {
		case "grpc-status":
			status = field.Value
		case "grpc-message":
			message = field.Value
		}
	}
	if status != "0" {
		return fmt.Errorf("a publish ended with gRPC status %q (%s), expected 0", status, message)
	}
	c.took = append(c.took, now.Sub(c.begun[frame.StreamID]))
	delete(c.begun, frame.StreamID)
	if now.After(until) {
		return nil
	}
	return c.call()
}
