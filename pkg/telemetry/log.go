package telemetry

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// NewLogger writes lines to w at the level and in the format of a valid
// configuration. A line that is logged within a traced call has its trace_id
// and span_id.
func NewLogger(cfg Config, w io.Writer) *slog.Logger {
	least, err := level(cfg.LogLevel)
	if err != nil {
		least = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: least}
	var handler slog.Handler = slog.NewJSONHandler(w, options)
	if cfg.LogFormat == formatText {
		handler = slog.NewTextHandler(w, options)
	}
	return slog.New(limited{traced{handler}, newLimiter()})
}

// traced adds the ids of the span in the context.
type traced struct{ slog.Handler }

// Handle implements slog.Handler.
func (t traced) Handle(ctx context.Context, record slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		record.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return t.Handler.Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (t traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{t.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (t traced) WithGroup(name string) slog.Handler { return traced{t.Handler.WithGroup(name)} }
