package web

import (
	"bufio"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// gRPC-Web comes as bytes, or as base64 for clients that cannot read bytes while
// they arrive.
const (
	webType     = "application/grpc-web"
	webTextType = "application/grpc-web-text"
)

// withText gives a handler of gRPC-Web the text form.
func withText(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, isText := strings.CutPrefix(r.Header.Get("Content-Type"), webTextType)
		if !isText {
			next.ServeHTTP(w, r)
			return
		}
		inner := r.Clone(r.Context())
		inner.Header.Set("Content-Type", webType+rest)
		inner.Body = &textReader{source: bufio.NewReader(r.Body), closer: r.Body}
		inner.ContentLength = -1
		answer := &textWriter{ResponseWriter: w}
		defer answer.finish()
		next.ServeHTTP(answer, inner)
	})
}

// textReader decodes base64 that may be padded anywhere, since clients encode
// each piece on its own.
type textReader struct {
	source *bufio.Reader
	closer io.Closer
	ready  []byte
	buffer [3]byte
}

func (r *textReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if len(r.ready) == 0 {
			if n > 0 && r.source.Buffered() < 4 {
				break // what is there goes out before more is waited for
			}
			if err := r.group(); err != nil {
				if n > 0 && errors.Is(err, io.EOF) {
					return n, nil
				}
				return n, err
			}
		}
		took := copy(p[n:], r.ready)
		r.ready = r.ready[took:]
		n += took
	}
	return n, nil
}

// group decodes the next four characters.
func (r *textReader) group() error {
	var group [4]byte
	if _, err := io.ReadFull(r.source, group[:]); err != nil {
		return err
	}
	n, err := base64.StdEncoding.Decode(r.buffer[:], group[:])
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "the request is not base64")
	}
	r.ready = r.buffer[:n]
	return nil
}

func (r *textReader) Close() error { return r.closer.Close() }

// textWriter encodes an answer. A flush pads what it has, so that every message
// can be read when it arrives.
type textWriter struct {
	http.ResponseWriter
	started bool
	rest    []byte // less than three bytes
}

func (w *textWriter) WriteHeader(code int) {
	if !w.started {
		w.started = true
		if rest, ok := strings.CutPrefix(w.Header().Get("Content-Type"), webType); ok {
			w.Header().Set("Content-Type", webTextType+rest)
		}
		w.Header().Del("Content-Length")
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *textWriter) Write(p []byte) (int, error) {
	if !w.started {
		w.WriteHeader(http.StatusOK)
	}
	for rest := p; len(rest) > 0; {
		piece := rest[:min(len(rest), textPiece)]
		rest = rest[len(piece):]
		w.rest = append(w.rest, piece...)
		whole := len(w.rest) - len(w.rest)%3
		if err := w.encode(w.rest[:whole]); err != nil {
			return 0, err
		}
		w.rest = append(w.rest[:0], w.rest[whole:]...)
	}
	return len(p), nil
}

// textPiece is how much of an answer is there as base64 at a time, in bytes.
const textPiece = 12 << 10

func (w *textWriter) encode(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	_, err := io.WriteString(w.ResponseWriter, base64.StdEncoding.EncodeToString(p))
	return err
}

func (w *textWriter) finish() {
	if !w.started { // an answer without a body
		w.WriteHeader(http.StatusOK)
	}
	// A client that is gone needs no rest.
	_ = w.encode(w.rest)
	w.rest = w.rest[:0]
}

// FlushError implements what http.ResponseController looks for.
func (w *textWriter) FlushError() error {
	w.finish()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush is for connect, which asks for http.Flusher.
func (w *textWriter) Flush() { _ = w.FlushError() }

// Unwrap lets http.ResponseController reach the connection.
func (w *textWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
