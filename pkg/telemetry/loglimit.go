package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Of each kind of line linesASecond are written in a second; how many more there
// were is said in one line at its end. What every call of an outage, or of a caller
// who means it ill, would write, fills no disk so, and hides nothing else.
const (
	linesASecond = 10
	limitWindow  = time.Second
	// maxKinds bounds the kinds that are told apart in a window; the others share one.
	maxKinds = 1000
)

// lineKind is what makes lines alike: the message, and the method and code of a
// call. None is made of what a client sent.
type lineKind struct {
	level                 slog.Level
	message, method, code string
}

func kindOf(record *slog.Record) lineKind {
	kind := lineKind{level: record.Level, message: record.Message}
	record.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "method":
			kind.method = a.Value.String()
		case "code":
			kind.code = a.Value.String()
		}
		return true
	})
	return kind
}

// limiter counts the lines of each kind in the current window.
type limiter struct {
	mu    sync.Mutex
	lines map[lineKind]int // in the window that the timer ends; nil between windows
}

func newLimiter() *limiter { return &limiter{} }

// isDue reports whether a line is to be written.
func (l *limiter) isDue(kind lineKind, end func(left map[lineKind]int)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == nil {
		l.lines = map[lineKind]int{}
		time.AfterFunc(limitWindow, func() { end(l.take()) })
	}
	if _, known := l.lines[kind]; !known && len(l.lines) >= maxKinds {
		kind = lineKind{level: kind.level, message: "lines of many kinds"}
	}
	l.lines[kind]++
	return l.lines[kind] <= linesASecond
}

// take ends the window and returns how many lines were left out.
func (l *limiter) take() map[lineKind]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.lines
	l.lines = nil
	for kind, count := range left {
		if left[kind] = count - linesASecond; left[kind] <= 0 {
			delete(left, kind)
		}
	}
	return left
}

// limited writes a bounded number of lines of each kind. Debug lines are all
// written: who asks for them wants them.
type limited struct {
	slog.Handler
	limiter *limiter
}

// Handle implements slog.Handler.
func (h limited) Handle(ctx context.Context, record slog.Record) error {
	if record.Level <= slog.LevelDebug || h.limiter.isDue(kindOf(&record), h.sayWhatWasLeftOut) {
		return h.Handler.Handle(ctx, record)
	}
	return nil
}

func (h limited) sayWhatWasLeftOut(left map[lineKind]int) {
	for kind, count := range left {
		record := slog.NewRecord(time.Now(), kind.level, "lines like this one were left out: "+kind.message, 0)
		record.AddAttrs(slog.Int("lines", count))
		if kind.method != "" {
			record.AddAttrs(slog.String("method", kind.method))
		}
		if kind.code != "" {
			record.AddAttrs(slog.String("code", kind.code))
		}
		// A line that cannot be written has nobody to tell.
		_ = h.Handler.Handle(context.Background(), record)
	}
}

// WithAttrs implements slog.Handler.
func (h limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limited{h.Handler.WithAttrs(attrs), h.limiter}
}

// WithGroup implements slog.Handler.
func (h limited) WithGroup(name string) slog.Handler {
	return limited{h.Handler.WithGroup(name), h.limiter}
}
