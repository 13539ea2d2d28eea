// Package logtest reads in tests what a part has logged.
package logtest

import (
	"bytes"
	"log/slog"
	"sync"
)

// Log keeps the lines of a logger, each a JSON object.
type Log struct {
	*slog.Logger

	mu    sync.Mutex
	lines bytes.Buffer
}

// New returns an empty log.
func New() *Log {
	l := &Log{}
	l.Logger = slog.New(slog.NewJSONHandler(l, nil))
	return l
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}

// String is everything so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}
