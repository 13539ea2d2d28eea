package web

import (
	"encoding/binary"
	"net/http"
	"time"
)

// patientBytes is how much a client has to take within the patience.
const patientBytes = 64 << 10

// answerWriter writes the answer of a call in the place of its stand-in, each part
// freed when the connection has taken it, and gives the writes a time limit: a client
// that takes nothing holds what it is sent. Between the messages of a stream there is
// no limit.
type answerWriter struct {
	http.ResponseWriter

	call    *call
	limited bool
	taken   int // since the limit was set
}

// Write writes what connect has to say, such as trailers, as it is.
func (w *answerWriter) Write(p []byte) (int, error) {
	frame := w.call.answer
	if frame == nil || len(p) == 0 {
		return w.write(p)
	}
	w.call.answer = nil
	defer frame.Free()
	if w.call.framed {
		var prefix [prefixBytes]byte
		binary.BigEndian.PutUint32(prefix[1:], uint32(frame.Data.Len()))
		if _, err := w.write(prefix[:]); err != nil {
			return 0, err
		}
	}
	for len(frame.Data) > 0 {
		if _, err := w.write(frame.Data[0].ReadOnlyData()); err != nil {
			return 0, err
		}
		frame.Data[0].Free()
		frame.Data = frame.Data[1:]
	}
	return len(p), nil
}

func (w *answerWriter) write(p []byte) (int, error) {
	wrote := 0
	for len(p) > 0 {
		w.limit()
		n, err := w.ResponseWriter.Write(p[:min(len(p), patientBytes)])
		wrote += n
		if err != nil {
			return wrote, err
		}
		p = p[n:]
		if w.taken += n; w.taken >= patientBytes {
			w.limited, w.taken = false, 0
		}
	}
	return wrote, nil
}

func (w *answerWriter) limit() {
	if !w.limited {
		_ = w.call.control.SetWriteDeadline(time.Now().Add(w.call.handler.deps.BodyTimeout))
		w.limited = true
	}
}

// FlushError implements what http.ResponseController looks for.
func (w *answerWriter) FlushError() error {
	w.limit()
	err := w.call.control.Flush()
	w.limited, w.taken = false, 0
	if w.call.method.Stream != nil {
		_ = w.call.control.SetWriteDeadline(time.Time{})
	}
	return err
}

// Flush is for connect, which asks for http.Flusher.
func (w *answerWriter) Flush() { _ = w.FlushError() }

// Unwrap lets http.ResponseController reach the connection.
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
