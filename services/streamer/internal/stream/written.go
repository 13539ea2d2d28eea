package stream

import (
	"sync"
	"sync/atomic"

	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// written are frames that transports are through with and of which the engine has
// not heard yet. Transports say so from the goroutine that serves a whole
// connection, which must not wait for the engine: it hears with its next event, or
// at once where somebody waits for that.
type written struct {
	some   atomic.Bool
	mu     sync.Mutex
	frames []*writing
	closed bool
}

// take returns the frames so far.
func (w *written) take() []*writing {
	if !w.some.Load() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.frames
	w.frames = nil
	w.some.Store(false)
	return taken
}

// wrote hears that a transport is through with a frame.
func (h *Hub) wrote(f *writing) {
	w := &h.written
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.frames = append(w.frames, f)
	w.some.Store(true)
	if h.engine.Waits(f.session.delivery) {
		h.running.Add(1)
		go func() {
			defer h.running.Done()
			h.do(func(*delivery.Engine) {})
		}()
	}
}

// collect tells the engine what was written. Who holds the lock of the engine calls
// it before an event, and after it for who began to wait meanwhile.
func (h *Hub) collect() {
	for _, f := range h.written.take() {
		h.engine.Written(f.frame)
		if s := f.session; s.left && !s.delivery.IsOwed() {
			s.left = false
			s.connection.forget(s)
		}
	}
}

// close ends the hearing.
func (w *written) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}
