package front

import (
	"bytes"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// maxPeekBytes and maxPeekFrames are how much is read before a connection that
	// still did not show a request goes to net/http, which knows how to refuse it.
	maxPeekBytes  = 64 << 10
	maxPeekFrames = 64
	// idleGuess is how long an HTTP/2 connection may be silent before it is given to
	// whoever probably will have to serve it.
	idleGuess = 2 * time.Second

	frameHeaderBytes = 9
	priorityBytes    = 5
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

var preface = []byte(http2.ClientPreface)

// classify reads up to the first request's headers. offersHTTP1 is for clients that
// say nothing: a native one does not speak HTTP/1.1, and a browser that connects
// ahead of its first request does.
func (s *Splitter) classify(conn net.Conn, offersHTTP1 bool) (*found, error) {
	f := &found{conn: conn}
	patience := time.Now().Add(s.config.HeaderTimeout)
	_ = conn.SetReadDeadline(patience)
	var look look
	guessing := false
	buffer := make([]byte, 4096)
	for {
		if look.next(f.read) {
			f.native = look.native
			break
		}
		if !f.settingsSent && len(f.read) >= len(preface) {
			// Many clients wait for the server's settings before their first call.
			if err := s.sendSettings(conn, patience); err != nil {
				return f, err
			}
			f.settingsSent, guessing = true, true
			_ = conn.SetReadDeadline(earlier(patience, time.Now().Add(idleGuess)))
		}
		n, err := conn.Read(buffer)
		f.read = append(f.read, buffer[:n]...)
		if guessing && errors.Is(err, os.ErrDeadlineExceeded) {
			if look.isSettled(f.read) {
				f.native = !offersHTTP1
				break
			}
			guessing = false // its headers are on their way
			_ = conn.SetReadDeadline(patience)
			continue
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
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: s.config.MaxConcurrentStreams})
	_ = conn.SetWriteDeadline(deadline)
	_, err := conn.Write(frame.Bytes())
	return err
}

func frameLength(header []byte) int {
	return int(header[0])<<16 | int(header[1])<<8 | int(header[2])
}

// look is the search for the first request in the bytes of a connection. It sees
// each frame once, however small the pieces are in which the frames come.
type look struct {
	at     int // where the next frame begins
	frames int
	block  []byte // of headers that go on
	within bool   // the next frame continues a block of headers
	native bool
}

// next goes on with all bytes that were read so far. It reports whether they tell
// who serves the connection. What is not valid is not native: net/http refuses it.
func (l *look) next(read []byte) (told bool) {
	if l.at == 0 {
		if n := min(len(read), len(preface)); !bytes.Equal(read[:n], preface[:n]) {
			return true
		}
		if len(read) < len(preface) {
			return false
		}
		l.at = len(preface)
	}
	for {
		if l.frames > maxPeekFrames || l.at > maxPeekBytes {
			return true
		}
		frame := read[l.at:]
		if len(frame) < frameHeaderBytes {
			return false
		}
		length := frameLength(frame)
		if length > maxFrameBytes {
			return true
		}
		if len(frame) < frameHeaderBytes+length {
			return false
		}
		l.at += frameHeaderBytes + length
		l.frames++
		if l.frame(http2.FrameType(frame[3]), http2.Flags(frame[4]), frame[frameHeaderBytes:frameHeaderBytes+length]) {
			return true
		}
	}
}

// frame looks at one frame.
func (l *look) frame(kind http2.FrameType, flags http2.Flags, payload []byte) (told bool) {
	switch {
	case l.within != (kind == http2.FrameContinuation):
		return true
	case l.within:
		l.block = append(l.block, payload...)
	case kind == http2.FrameHeaders:
		block, valid := unpadded(payload, flags)
		if !valid {
			return true
		}
		l.block = slices.Clip(block) // what follows it are bytes of the client's
	default:
		return false
	}
	l.within = !flags.Has(http2.FlagHeadersEndHeaders) // the same bit for CONTINUATION
	if l.within {
		return false
	}
	l.native = isNative(contentType(l.block))
	return true
}

// isSettled reports whether what was read is whole frames without a request: a client
// that says nothing more, and not one that sends its headers byte by byte.
func (l *look) isSettled(read []byte) bool { return l.at == len(read) && !l.within }

// unpadded is the payload of headers without its padding and priority.
func unpadded(payload []byte, flags http2.Flags) (block []byte, valid bool) {
	padding := 0
	if flags.Has(http2.FlagHeadersPadded) {
		if len(payload) == 0 {
			return nil, false
		}
		padding = int(payload[0])
		payload = payload[1:]
	}
	if flags.Has(http2.FlagHeadersPriority) {
		if len(payload) < priorityBytes {
			return nil, false
		}
		payload = payload[priorityBytes:]
	}
	if padding > len(payload) {
		return nil, false
	}
	return payload[:len(payload)-padding], true
}

// contentType is empty for headers without one, or that cannot be read.
func contentType(block []byte) string {
	found := ""
	decoder := hpack.NewDecoder(4096, func(field hpack.HeaderField) {
		if field.Name == "content-type" && found == "" {
			found = field.Value
		}
	})
	decoder.SetMaxStringLength(maxPeekBytes)
	if _, err := decoder.Write(block); err != nil {
		return ""
	}
	return found
}

// isNative tells application/grpc and application/grpc+proto from
// application/grpc-web.
func isNative(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}
