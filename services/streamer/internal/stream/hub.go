// Package stream puts the delivery engine on gRPC: the bidirectional and the
// static stream as two ways to open one kind of session, with keepalive,
// buckets, and the goroutines that carry out what the engine decides.
package stream

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// Database is the one instance that serves targets and history.
type Database interface {
	Heads(ctx context.Context, topics []topic.Topic) ([]topic.SequenceID, error)
	ReadPage(ctx context.Context, requests []store.PageRequest, maxBytes int) (rows []store.PageRow, cut bool, err error)
}

// Deps are what a Hub needs beside its configuration.
type Deps struct {
	Database Database
	Logger   *slog.Logger
	Meter    *Meter
}

// Hub owns the engine and all sessions. Its methods may be called from any
// goroutine.
type Hub struct {
	config   Config
	limits   limit.Config
	database Database
	logger   *slog.Logger
	meter    *Meter

	mu     sync.Mutex
	engine *delivery.Engine
	// unannounced is what notices may still announce.
	unannounced unannounced

	lineage atomic.Pointer[notice.Lineage]
	// heads holds a token for each read of heads that may run.
	heads chan struct{}
	// work ends with Close; running counts the goroutines of all sessions.
	work    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

// NewHub returns a hub without a database connection: see Found.
func NewHub(config Config, limits limit.Config, deps Deps) *Hub {
	h := &Hub{
		config:   config,
		limits:   limits,
		database: deps.Database,
		logger:   deps.Logger,
		meter:    deps.Meter,
		engine:   delivery.New(engineConfig(config, limits), time.Now()),
		heads:    make(chan struct{}, config.HeadReads),
	}
	h.work, h.stop = context.WithCancel(context.Background())
	return h
}

// Close waits for everything that sessions started, and hands on the last counts.
// No session may be open, and no sweep may run.
func (h *Hub) Close() {
	h.stop()
	h.running.Wait()
	h.meter.report(h.engine.Stats())
}

// do changes the engine and carries out the effects.
func (h *Hub) do(change func(*delivery.Engine)) {
	h.mu.Lock()
	change(h.engine)
	effects := h.engine.TakeEffects()
	h.running.Add(len(effects.Wake) + len(effects.Fetch))
	h.mu.Unlock()
	for _, s := range effects.Wake {
		go s.Owner.(*session).send()
	}
	for _, f := range effects.Fetch {
		go h.fetch(f)
	}
	for _, s := range effects.Ended {
		s.Owner.(*session).end(s.Err())
	}
	for _, s := range effects.Room {
		select {
		case s.Owner.(*session).room <- struct{}{}:
		default:
		}
	}
}

// Notice hears from the bus.
func (h *Hub) Notice(n notice.Notice) {
	if lineage := h.lineage.Load(); lineage == nil || *lineage != n.Lineage {
		h.meter.notice("foreign")
		return
	}
	h.meter.notice("heard")
	e := &delivery.Envelope{SequenceID: n.SequenceID, Encoded: n.Envelope, ServerNS: serverNS(n.Envelope)}
	h.meter.follow(e, &n)
	h.do(func(engine *delivery.Engine) {
		h.unannounced.heard(n.Topic, n.SequenceID)
		engine.Notice(n.Topic, n.Previous, e)
	})
}

// Raise hears from the sweep what was stored.
func (h *Hub) Raise(rows []store.SweepRow) {
	for len(rows) > 0 {
		part := rows[:min(len(rows), stepTopics)]
		rows = rows[len(part):]
		h.do(func(engine *delivery.Engine) {
			for _, row := range part {
				if engine.Raise(row.Topic, row.SequenceID) {
					h.unannounced.add(row)
				}
			}
		})
	}
}

// Found says that the database answers: history and targets come from this
// lineage from now on.
func (h *Hub) Found(lineage notice.Lineage) {
	h.lineage.Store(&lineage)
	h.do((*delivery.Engine).Found)
}

// Lost says that the database does not answer.
func (h *Hub) Lost() { h.do((*delivery.Engine).Lost) }

// Reset ends all streams and forgets what was known: the database is another
// one now.
func (h *Hub) Reset() {
	h.do(func(engine *delivery.Engine) {
		h.unannounced = unannounced{}
		engine.Lost()
		engine.Reset(fault.Errorf(fault.Unavailable, "the stream's database has changed: reconnect from durable cursors"))
	})
}

// Tick ends a sweep. Calls come one at a time.
func (h *Hub) Tick(now time.Time) {
	var stats delivery.Stats
	var missed int64
	h.do(func(engine *delivery.Engine) {
		engine.Tick(now)
		stats, missed = engine.Stats(), h.unannounced.endSweep()
	})
	h.meter.found(missed)
	h.meter.report(stats)
}

// fetch reads a page for the engine.
func (h *Hub) fetch(f *delivery.Fetch) {
	defer h.running.Done()
	requests := make([]store.PageRequest, len(f.Requests))
	for i, q := range f.Requests {
		requests[i] = store.PageRequest{Topic: q.Topic, After: q.After, MaxRows: q.MaxRows}
	}
	rows, cut, err := h.database.ReadPage(h.work, requests, f.MaxBytes)
	if err != nil {
		h.logger.Warn("a page of history was not read and will be tried again", "error", err)
		h.do(func(engine *delivery.Engine) { engine.FetchFailed(f) })
		return
	}
	results := split(f, rows, cut)
	h.do(func(engine *delivery.Engine) { engine.Page(f, results) })
}

// split gives each request its rows; they come in the order of the requests.
func split(f *delivery.Fetch, rows []store.PageRow, cut bool) []delivery.Result {
	envelopes := make([]*delivery.Envelope, len(rows))
	for i, row := range rows { // each by itself: one that waits to be sent keeps no other
		envelopes[i] = &delivery.Envelope{SequenceID: row.SequenceID, ServerNS: row.ServerNS, Encoded: row.Encoded}
	}
	results := make([]delivery.Result, len(f.Requests))
	at := 0
	for i, q := range f.Requests {
		from := at
		for at < len(rows) && rows[at].Request == i {
			at++
		}
		results[i] = delivery.Result{Envelopes: envelopes[from:at], More: cut || at-from == q.MaxRows}
	}
	return results
}

// serverNS reads the storing time out of an encoded ServerEnvelope, 0 if there
// is none.
func serverNS(encoded []byte) int64 {
	const envelopeMeta, metaServerNS = 1, 2
	for m := wire.Read(encoded); m.Next(); {
		if !m.IsBytes(envelopeMeta) {
			continue
		}
		for meta := wire.Read(m.Bytes()); meta.Next(); {
			if meta.IsVarint(metaServerNS) {
				return int64(meta.Varint())
			}
		}
	}
	return 0
}
