package delivery

import (
	"slices"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// rowBytes is what a row takes beside its payload: metadata and bookkeeping.
const rowBytes = 256

// Request asks for the rows of one topic above a position.
type Request struct {
	Topic   topic.Topic
	After   topic.SequenceID
	MaxRows int

	entry   *entry
	waiters []*registration
	// known is the known head when the request was made: a page that ends below
	// a head that rose since proves no lag.
	known topic.SequenceID
}

// Fetch is one page to read from the database, in one snapshot.
type Fetch struct {
	Requests []*Request
	// MaxBytes is how many payload bytes to read, and one envelope more.
	MaxBytes int

	number   uint64
	reserved int
}

// Result is what a fetch found for one request: the envelopes right above the
// position, in order. More says that others may follow.
type Result struct {
	Envelopes []*Envelope
	More      bool
}

// enqueue gives a registration a turn, behind the others of its session.
func (e *Engine) enqueue(r *registration) {
	r.state = behind
	s := r.session
	if !r.queued {
		r.queued = true
		if s.last == nil {
			s.first = r
		} else {
			s.last.next = r
		}
		s.last = r
	}
	e.makeReady(s)
}

// enqueueFirst is for a registration that had no part in a page.
func (e *Engine) enqueueFirst(r *registration) {
	r.state = behind
	s := r.session
	if !r.queued {
		r.queued = true
		r.next = s.first
		s.first = r
		if s.last == nil {
			s.last = r
		}
	}
	e.makeReady(s)
}

// dequeue returns the registration whose turn it is, or nil.
func (s *Session) dequeue() *registration {
	r := s.first
	if r == nil {
		return nil
	}
	s.first = r.next
	if s.first == nil {
		s.last = nil
	}
	r.next = nil
	r.queued = false
	if r.state == removed {
		s.removed--
	}
	return r
}

// unlinked counts removed registrations in the queue and takes them out when
// they are many: a client that adds and removes topics must not make it grow.
func (s *Session) unlinked(r *registration) {
	if !r.queued || s.first == nil {
		return
	}
	if s.removed++; s.removed <= len(s.registrations)+1024 {
		return
	}
	held := s.first
	s.first, s.last = nil, nil
	for held != nil {
		next := held.next
		held.next = nil
		if held.state == removed {
			held.queued = false
		} else if s.last == nil {
			s.first, s.last = held, held
		} else {
			s.last.next, s.last = held, held
		}
		held = next
	}
	s.removed = 0
}

// makeReady gives a session a turn at the database. It takes one at a time.
func (e *Engine) makeReady(s *Session) {
	if s.inReady || s.outstanding > 0 || s.first == nil || s.err != nil {
		return
	}
	s.inReady = true
	e.ready = append(e.ready, s)
}

// pressedPages is how many modest outputs a page is for while the budget is pressed.
const pressedPages = 4

// idleRounds bounds the work of one event that needs no fetch.
const idleRounds = 64

// dispatch starts fetches while there are sessions that wait for one and the
// bounds allow it.
func (e *Engine) dispatch() {
	e.feedStarved()
	for idle := 0; idle < idleRounds && e.mayFetch(); {
		f := &Fetch{MaxBytes: e.config.PageBytes, reserved: e.reservation()}
		if e.isPressed() { // no more of it could be queued
			f.MaxBytes = min(f.MaxBytes, pressedPages*e.modest())
		}
		if e.isShort() {
			e.short.Store(true)
			return // until somebody releases bytes; whoever waits longest is next
		}
		e.output.charge(f.reserved)
		e.fetches++
		f.number = e.fetches
		for turns := len(e.ready); turns > 0 && len(f.Requests) < e.config.PageTopics; turns-- {
			s := e.ready[0]
			e.ready[0] = nil
			e.ready = e.ready[1:]
			s.inReady = false
			e.turn(s, f)
		}
		if len(f.Requests) == 0 {
			e.output.give(f.reserved)
			idle++ // notices or reads under way served everyone
			continue
		}
		for _, q := range f.Requests {
			q.MaxRows = max(1, e.pageRows()/len(f.Requests))
		}
		e.inFlight++
		e.effects.Fetch = append(e.effects.Fetch, f)
	}
}

// reservation is what a page may take of the budget.
func (e *Engine) reservation() int {
	return e.config.PageBytes + e.config.EnvelopeBytes + e.config.PageRows*rowBytes
}

// isShort says that the budget has no room for a page: nobody catches up.
func (e *Engine) isShort() bool { return e.output.free() < e.reservation() }

// pageRows is how many rows are about a page, judged by those read so far: what
// a page leaves out for lack of bytes was read in vain.
func (e *Engine) pageRows() int {
	return min(e.config.PageRows, e.config.PageBytes/max(e.rowSize, 1)+1)
}

// measure learns the size of rows from a page.
func (e *Engine) measure(results []Result) {
	for _, result := range results {
		for _, envelope := range result.Envelopes {
			e.rowSize += (len(envelope.Encoded) - e.rowSize) / 16
		}
	}
}

func (e *Engine) mayFetch() bool {
	return e.connected && e.inFlight < e.config.Fetches && len(e.ready) > 0
}

// turn gives registrations of a session, in their order, a part of a fetch.
func (e *Engine) turn(s *Session, f *Fetch) {
	if s.err != nil {
		return
	}
	if s.full = !e.roomForPage(s); s.full {
		return // freed makes it ready again
	}
	for end := s.last; len(f.Requests) < e.config.PageTopics && s.first != nil; {
		r := s.dequeue()
		if r.state == behind {
			if full := e.advance(r, f); full {
				break
			}
		}
		if r == end {
			break
		}
	}
	e.makeReady(s)
}

// advance serves a registration from kept notices or puts it into a fetch. It
// says whether the session's output is full.
func (e *Engine) advance(r *registration, f *Fetch) (full bool) {
	t := r.entry
	before := r.floor
	// For lack of budget alone it reads the page instead, which has its share.
	full = e.link(r) && !e.roomForPage(r.session)
	switch {
	case r.floor >= t.known:
		r.state = current
		e.isCurrent(t)
	case full:
		e.enqueueFirst(r)
	case r.floor > before:
		e.enqueue(r)
	default:
		r.state = fetching
		r.session.outstanding++
		e.request(t, r, f)
	}
	return full
}

// request joins a read of the topic from the same position that is under way, or
// adds one to a fetch. A read from a lower position may end below the floor, again
// and again while others join the topic: it would serve nobody here.
func (e *Engine) request(t *entry, r *registration, f *Fetch) {
	c := t.catching
	for _, q := range c.requests {
		if q.After == r.floor && q.known >= t.known {
			q.waiters = append(q.waiters, r)
			return
		}
	}
	q := &Request{Topic: t.name, After: r.floor, entry: t, waiters: []*registration{r}, known: t.known}
	c.requests = append(c.requests, q)
	f.Requests = append(f.Requests, q)
}

// Page is the result of a fetch, one for each of its requests.
func (e *Engine) Page(f *Fetch, results []Result) {
	e.landed(f)
	e.measure(results)
	for i, q := range f.Requests {
		rows := results[i].Envelopes
		if n := len(rows); n > 0 {
			e.raise(q.entry, rows[n-1].SequenceID)
		}
		for _, r := range q.waiters {
			r.session.outstanding--
			if r.state != removed && r.session.err == nil {
				e.feed(r, f, q, results[i])
			}
			e.makeReady(r.session)
		}
	}
	e.dispatch()
}

// FetchFailed gives the registrations of a fetch another turn after the next
// tick.
func (e *Engine) FetchFailed(f *Fetch) {
	e.landed(f)
	for _, q := range f.Requests {
		for _, r := range q.waiters {
			r.session.outstanding--
			if r.state == fetching && r.session.err == nil {
				e.wait(r)
			}
			e.makeReady(r.session)
		}
	}
	e.dispatch()
}

func (e *Engine) landed(f *Fetch) {
	e.inFlight--
	e.output.give(f.reserved)
	for _, q := range f.Requests {
		if c := q.entry.catching; c != nil {
			if at := slices.Index(c.requests, q); at >= 0 {
				c.requests = slices.Delete(c.requests, at, at+1)
			}
		}
	}
}

func (e *Engine) wait(r *registration) {
	r.state = waiting
	e.waiting = append(e.waiting, r)
}

// feed gives a registration its rows of a page and decides what comes next. The
// registration may have moved on by notices meanwhile: rows at or below its
// floor are dropped, and those above follow it, since floors only rise.
func (e *Engine) feed(r *registration, f *Fetch, q *Request, result Result) {
	var got *Frame
	before, left := r.floor, false
	for _, envelope := range result.Envelopes {
		if envelope.SequenceID <= r.floor {
			continue
		}
		next, ok := e.admitHistory(r, envelope, f.number, got)
		if got = next; !ok {
			left = true
			break
		}
	}
	if r.state != fetching {
		return // current by notices, or behind again and in the queue
	}
	if !left {
		e.link(r)
	}
	switch t := r.entry; {
	case r.floor >= t.known:
		r.state = current
		e.isCurrent(t)
	case (left || result.More) && r.floor == before:
		e.enqueueFirst(r)
	case left || result.More || t.known > q.known || r.session.full:
		e.enqueue(r)
	default:
		e.wait(r) // the replica lags
	}
}
