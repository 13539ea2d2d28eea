package front

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// maxPeekBytes is how much is read before a connection that still did not
	// show a request goes to net/http, which knows how to refuse it.
	maxPeekBytes = 64 << 10
	// idleGuess is how long an HTTP/2 connection may be silent before it is taken
	// for a native gRPC client: those alone connect before they have a call.
	idleGuess = 2 * time.Second

	frameHeaderBytes = 9
	maxFrameBytes    = 16 << 10 // nobody announces more here
)

// found is a connection with what was read of it.
type found struct {
	conn   net.Conn
	read   []byte
	native bool
	// settingsSent says that the client has our settings already: its
	// acknowledgement of them is not for the server that takes over.
	settingsSent bool
}

var (
	preface = []byte(http2.ClientPreface)
	errMore = errors.New("more bytes are needed")
)

// classify reads up to the first request's headers.
func (s *Splitter) classify(conn net.Conn) (found, error) {
	f := found{conn: conn}
	patience := time.Now().Add(s.config.HeaderTimeout)
	_ = conn.SetReadDeadline(patience)
	buffer := make([]byte, 4096)
	for {
		native, err := classify(f.read, s.config.MaxHeaderBytes)
		if err == nil {
			f.native = native
			break
		}
		if len(f.read) >= maxPeekBytes {
			break
		}
		if !f.settingsSent && len(f.read) >= len(preface) {
			// Many clients wait for the server's settings before their first call.
			if err := s.sendSettings(conn, patience); err != nil {
				return f, err
			}
			f.settingsSent = true
			_ = conn.SetReadDeadline(earlier(patience, time.Now().Add(idleGuess)))
		}
		n, err := conn.Read(buffer)
		f.read = append(f.read, buffer[:n]...)
		if errors.Is(err, os.ErrDeadlineExceeded) && f.settingsSent && isSettled(f.read) {
			f.native = true
			break
		}
		if err != nil {
			return f, err
		}
	}
	_ = conn.SetDeadline(time.Time{})
	return f, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// sendSettings speaks first for whichever server takes over. It announces the
// one setting that the client must know before its first request.
func (s *Splitter) sendSettings(conn net.Conn, deadline time.Time) error {
	var frame bytes.Buffer
	framer := http2.NewFramer(&frame, nil)
	// A buffer takes every write.
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: s.config.Native.MaxConcurrentStreams})
	_ = conn.SetWriteDeadline(deadline)
	_, err := conn.Write(frame.Bytes())
	return err
}

// isSettled reports whether what was read is whole frames only: a client that
// says nothing more, and not one that sends its headers byte by byte.
func isSettled(read []byte) bool {
	rest := read[len(preface):]
	for len(rest) > 0 {
		if len(rest) < frameHeaderBytes || len(rest) < frameHeaderBytes+frameLength(rest) || rest[3] == byte(http2.FrameHeaders) {
			return false
		}
		rest = rest[frameHeaderBytes+frameLength(rest):]
	}
	return true
}

func frameLength(header []byte) int {
	return int(header[0])<<16 | int(header[1])<<8 | int(header[2])
}

func frameStream(header []byte) uint32 {
	return binary.BigEndian.Uint32(header[5:]) & (1<<31 - 1)
}

// classify reports whether a connection that began with these bytes is native
// gRPC; errMore when they do not tell yet. What is not valid is not native:
// net/http refuses it.
func classify(read []byte, maxHeaderBytes int) (native bool, err error) {
	if n := min(len(read), len(preface)); !bytes.Equal(read[:n], preface[:n]) {
		return false, nil
	}
	if len(read) < len(preface) {
		return false, errMore
	}
	framer := http2.NewFramer(io.Discard, bytes.NewReader(read[len(preface):]))
	framer.SetMaxReadFrameSize(maxFrameBytes)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.MaxHeaderListSize = uint32(maxHeaderBytes)
	for {
		frame, err := framer.ReadFrame()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return false, errMore
		case err != nil:
			return false, nil //nolint:nilerr // not HTTP/2 as native clients speak it: net/http answers
		}
		headers, ok := frame.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		for _, field := range headers.Fields {
			if field.Name == "content-type" {
				return isNative(field.Value), nil
			}
		}
		return false, nil
	}
}

// isNative tells application/grpc and application/grpc+proto from
// application/grpc-web.
func isNative(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}
