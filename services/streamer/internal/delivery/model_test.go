package delivery

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// The model is a table of committed envelopes, a replica that shows a prefix of
// it, notices that do what they want, and clients that check each envelope
// against the table: after cursor c comes the first row above c, then the next,
// and no other (I5), whatever happens around the engine (I6).

// modelRuns is how many random histories a plain `go test` tries.
const modelRuns = 20_000

// modelSteps is how many events one history has on average.
const modelSteps = 60

// Proves API-095, API-096, I5, I6.
func TestEveryRegistrationGetsItsTopicExactlyOnceInOrder(t *testing.T) {
	runs := modelRuns
	if testing.Short() {
		runs /= 20
	}
	unlessGiven(t, "rapid.checks", runs)
	unlessGiven(t, "rapid.steps", modelSteps)
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		m.begin()
		t.Repeat(m.actions())
		m.settle()
	})
}

// unlessGiven sets a flag of rapid for one test, if the command line does not.
func unlessGiven(t *testing.T, name string, value int) {
	f := flag.Lookup(name)
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(strconv.Itoa(value)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
}

const modelTopics = 6

// maxIdlePages is how many pages in a row may bring a registration nothing, while
// there is more to read and room for it. The first request of a page always gets a
// row, and with four streams of six topics each has its turn at that.
const maxIdlePages = 4 * modelTopics

func modelTopic(n int) topic.Topic { return topic.Topic(fmt.Sprintf("\x00%016d", n)) }

type row struct {
	name     topic.Topic
	id       topic.SequenceID
	previous topic.SequenceID
	size     int
}

func (r row) envelope(carries bool) *Envelope {
	e := &Envelope{SequenceID: r.id}
	if carries {
		e.Encoded = make([]byte, r.size)
	}
	return e
}

// inline says whether a notice carries the envelope.
func (r row) inline() bool { return r.size != 100 || r.id%2 == 0 }

// client is the far end of a session, and what it has to see.
type client struct {
	session *Session
	nextID  uint64
	// cursors of the topics that it holds registered, by its own knowledge.
	cursors map[topic.Topic]topic.SequenceID
	// sent are its updates that were not answered yet, oldest first.
	sent  []Update
	step  bool // an update is on its way in the engine
	heads []topic.SequenceID
	asks  bool // heads are to be read
}

// page is a fetch on its way.
type page struct {
	fetch   *Fetch
	results []Result // nil until it was read
}

type model struct {
	t       *rapid.T
	engine  *Engine
	now     time.Time
	table   map[topic.Topic][]row
	log     []row
	last    topic.SequenceID
	visible int // rows of the log that the replica shows
	swept   int
	sweep   []row // read and not yet told
	sweepTo int
	notices []row
	pages   []*page
	clients []*client
	lost    bool
	config  Config
	owed    []*Frame // that transports have taken and not written yet
	topics  int      // that this history uses: with one, floors differ on it
	// idle counts the pages that brought a registration nothing since the last that
	// did.
	idle map[*registration]int
}

func newModel(t *rapid.T) *model {
	m := &model{t: t, table: map[topic.Topic][]row{}, now: time.Unix(1000, 0), idle: map[*registration]int{}}
	m.topics = rapid.SampledFrom([]int{1, 2, modelTopics}).Draw(t, "topics in use")
	m.config = Config{
		FrameBytes:    rapid.SampledFrom([]int{130, 400}).Draw(t, "frame"),
		PageBytes:     rapid.SampledFrom([]int{40, 200}).Draw(t, "page"),
		PageRows:      rapid.IntRange(1, 8).Draw(t, "rows"),
		PageTopics:    rapid.IntRange(1, 4).Draw(t, "topics"),
		EnvelopeBytes: 110,
		Fetches:       rapid.IntRange(1, 3).Draw(t, "fetches"),
		SessionFrames: rapid.SampledFrom([]int{2, 4, 64}).Draw(t, "frames"),
		SessionBytes:  rapid.SampledFrom([]int{400, 1000, 100_000}).Draw(t, "bytes"),
		NoticeBytes:   rapid.SampledFrom([]int{500, 2000, 100_000}).Draw(t, "notices"),
		SharedBytes:   rapid.SampledFrom([]int{25, 1000}).Draw(t, "shared"),
		LiveFrames:    rapid.IntRange(0, 2).Draw(t, "live"),
		StepTopics:    rapid.IntRange(1, 3).Draw(t, "steps"),
		MaxTopics:     modelTopics,
		SlowClient:    time.Hour,
		LostDatabase:  time.Hour,
	}
	reserve := m.config.PageBytes + m.config.EnvelopeBytes + m.config.PageRows*rowBytes
	m.config.RegistrationBytes = 4 * (modelTopics*RegistrationBytes + 1)
	m.config.BudgetBytes = reserve + AnswerBytes(modelTopics) + rapid.SampledFrom([]int{0, 120, 100_000}).Draw(t, "budget")
	m.engine = New(m.config, m.now)
	m.engine.Found()
	return m
}

// begin gives most histories streams and rows to start from: the interesting
// interleavings are those of streams that are open.
func (m *model) begin() {
	for range m.pick(4, "rows before") {
		m.publish()
	}
	m.replicate()
	for range m.pick(4, "streams before") {
		m.connect()
		m.updateOf(m.clients[len(m.clients)-1])
		if m.pick(2, "settled") == 0 {
			m.quiesce()
		}
	}
}

// do carries out an event and takes its effects.
func (m *model) do(event func(*Engine)) {
	event(m.engine)
	effects := m.engine.TakeEffects()
	for _, f := range effects.Fetch {
		m.pages = append(m.pages, &page{fetch: f})
	}
	m.check()
}

func (m *model) pick(n int, label string) int { return rapid.IntRange(0, n-1).Draw(m.t, label) }

func (m *model) need(ok bool) {
	if !ok {
		m.t.Skip()
	}
}

func (m *model) actions() map[string]func(*rapid.T) {
	act := map[string]func(){
		"publish": m.publish, "publish more": m.publish, "hear": m.hear, "hear more": m.hear, "hear again": m.hearAgain, "lose": m.lose,
		"replicate": m.replicate, "read page": m.readPage, "answer page": m.answerPage, "fail page": m.failPage,
		"read sweep": m.readSweep, "tell sweep": m.tellSweep, "tick": m.tick,
		"connect": m.connect, "update": m.update, "step": m.step, "step more": m.step, "read heads": m.readHeads, "tell heads": m.tellHeads,
		"take": m.take, "take more": m.take, "write": m.write, "ping": m.ping, "disconnect": m.disconnect, "lose database": m.loseDatabase, "find database": m.findDatabase,
	}
	out := map[string]func(*rapid.T){}
	for name, do := range act {
		out[name] = func(t *rapid.T) { m.t = t; do() }
	}
	return out
}

func (m *model) publish() {
	name := modelTopic(m.pick(m.topics, "topic"))
	for range rapid.IntRange(1, 4).Draw(m.t, "count") {
		m.last += topic.SequenceID(rapid.IntRange(1, 2).Draw(m.t, "gap"))
		r := row{name: name, id: m.last, size: rapid.SampledFrom([]int{10, 30, 100}).Draw(m.t, "size")}
		if rows := m.table[name]; len(rows) > 0 {
			r.previous = rows[len(rows)-1].id
		}
		m.table[name] = append(m.table[name], r)
		m.log = append(m.log, r)
		m.notices = append(m.notices, r)
	}
}

func (m *model) tell(r row) {
	m.do(func(e *Engine) { e.Notice(r.name, r.previous, r.envelope(r.inline())) })
}

// hear delivers a notice, mostly the oldest: reordering and delay are the rest.
func (m *model) hear() {
	m.need(len(m.notices) > 0)
	at := 0
	if m.pick(4, "reorder") == 0 {
		at = m.pick(len(m.notices), "notice")
	}
	r := m.notices[at]
	m.notices = slices.Delete(m.notices, at, at+1)
	m.tell(r)
}

func (m *model) hearAgain() {
	m.need(len(m.log) > 0)
	m.tell(m.log[m.pick(len(m.log), "notice")])
}

func (m *model) lose() {
	m.need(len(m.notices) > 0)
	m.notices = slices.Delete(m.notices, 0, 1)
}

func (m *model) replicate() {
	m.visible += m.pick(len(m.log)-m.visible+1, "rows")
}

// shown are the rows of a topic that the replica shows.
func (m *model) shown(name topic.Topic) []row {
	var rows []row
	for _, r := range m.log[:m.visible] {
		if r.name == name {
			rows = append(rows, r)
		}
	}
	return rows
}

func (m *model) readPage() {
	m.need(!m.lost && len(m.pages) > 0)
	p := m.pages[m.pick(len(m.pages), "page")]
	m.need(p.results == nil)
	m.read(p)
}

func (m *model) read(p *page) {
	p.results = make([]Result, len(p.fetch.Requests))
	bytes, cut := 0, false
	for turn := 0; ; turn++ {
		found := false
		for i, q := range p.fetch.Requests {
			at, n := 0, 0
			for _, r := range m.shown(q.Topic) {
				if r.id <= q.After {
					continue
				}
				if n == turn && n < q.MaxRows {
					found = true
					if bytes < p.fetch.MaxBytes {
						p.results[i].Envelopes = append(p.results[i].Envelopes, r.envelope(true))
						bytes += r.size
						at++
					} else {
						cut = true
					}
				}
				n++
			}
		}
		if !found {
			break
		}
	}
	for i, q := range p.fetch.Requests {
		p.results[i].More = cut || len(p.results[i].Envelopes) == q.MaxRows
	}
}

func (m *model) answerPage() {
	for i, p := range m.pages {
		if p.results != nil {
			m.pages = slices.Delete(m.pages, i, i+1)
			m.answer(p)
			return
		}
	}
	m.t.Skip()
}

// answer brings a page to the engine, and requires that each registration that
// waited for one gets something in the end.
func (m *model) answer(p *page) {
	floors := map[*registration]topic.SequenceID{}
	for i, q := range p.fetch.Requests {
		for _, r := range q.waiters {
			if r.state == fetching && p.results[i].More {
				floors[r] = r.floor
			}
		}
	}
	m.do(func(e *Engine) { e.Page(p.fetch, p.results) })
	for r, floor := range floors {
		switch {
		case r.floor != floor || r.session.full:
			delete(m.idle, r)
		case m.idle[r] == maxIdlePages:
			m.t.Fatalf("%d pages brought a registration nothing", maxIdlePages)
		default:
			m.idle[r]++
		}
	}
}

func (m *model) failPage() {
	m.need(len(m.pages) > 0)
	at := m.pick(len(m.pages), "page")
	p := m.pages[at]
	m.pages = slices.Delete(m.pages, at, at+1)
	m.do(func(e *Engine) { e.FetchFailed(p.fetch) })
}

func (m *model) readSweep() {
	m.need(!m.lost && m.sweep == nil)
	m.sweep = slices.Clone(m.log[min(m.swept, m.visible):m.visible])
	m.sweepTo = m.visible
}

func (m *model) tellSweep() {
	m.need(m.sweep != nil)
	for _, r := range m.sweep {
		m.do(func(e *Engine) { e.Raise(r.name, r.id) })
	}
	m.sweep = nil
	m.swept = max(m.swept, m.sweepTo)
	m.tick()
}

func (m *model) tick() {
	m.now = m.now.Add(250 * time.Millisecond)
	m.do(func(e *Engine) { e.Tick(m.now) })
}

func (m *model) connect() {
	m.need(len(m.clients) < 4)
	c := &client{cursors: map[topic.Topic]topic.SequenceID{}}
	m.do(func(e *Engine) { c.session = e.Open(c) })
	m.clients = append(m.clients, c)
}

func (m *model) client() *client {
	m.need(len(m.clients) > 0)
	return m.clients[m.pick(len(m.clients), "client")]
}

func (m *model) update() {
	c := m.client()
	m.need(!c.step && !m.lost)
	m.updateOf(c)
}

func (m *model) updateOf(c *client) {
	c.nextID++
	u := Update{ID: c.nextID, Answer: Applied}
	for n := range m.topics {
		name := modelTopic(n)
		switch m.pick(4, "change") {
		case 0:
			cursor := topic.SequenceID(0)
			switch m.pick(4, "cursor") {
			case 0:
				cursor = topic.SequenceID(m.pick(int(m.last)+3, "at"))
			case 1:
				cursor = m.last
			}
			u.Adds = append(u.Adds, Add{name, cursor})
		case 1:
			u.Removes = append(u.Removes, name)
		}
	}
	began := false
	m.do(func(e *Engine) { began = e.Begin(c.session, u) })
	if !began {
		c.nextID--
		return
	}
	c.step = true
	c.sent = append(c.sent, u)
}

func (m *model) step() {
	c := m.client()
	m.need(c.step && !c.asks)
	m.stepOf(c)
}

func (m *model) stepOf(c *client) {
	var progress Progress
	var failure *fault.Error
	m.do(func(e *Engine) { progress, failure = e.Step(c.session) })
	switch {
	case failure != nil && failure.Kind == fault.Unavailable:
		m.drop(c) // the database was lost in the middle of it
	case failure != nil:
		m.t.Fatalf("a valid update failed: %v", failure)
	case progress == NeedHeads:
		c.asks = true
	case progress == Done:
		c.step = false
	}
}

func (m *model) readHeads() {
	c := m.client()
	m.need(c.asks && c.heads == nil && !m.lost)
	m.readHeadsOf(c)
}

func (m *model) readHeadsOf(c *client) {
	names, _ := c.session.Pending()
	for _, name := range names {
		head := topic.SequenceID(0)
		if rows := m.shown(name); len(rows) > 0 {
			head = rows[len(rows)-1].id
		}
		c.heads = append(c.heads, head)
	}
}

func (m *model) tellHeads() {
	c := m.client()
	m.need(c.heads != nil)
	m.tellHeadsOf(c)
}

func (m *model) tellHeadsOf(c *client) {
	heads := c.heads
	c.heads, c.asks = nil, false
	m.do(func(e *Engine) { e.Heads(c.session, heads) })
}

func (m *model) take() { m.takeOf(m.client()) }

func (m *model) takeOf(c *client) bool {
	var f *Frame
	m.do(func(e *Engine) { f = e.Next(c.session) })
	if f == nil {
		return false
	}
	if f.Owed {
		m.owed = append(m.owed, f)
	}
	m.receive(c, f)
	return true
}

// write is a transport's: it may be through with a frame before its owner has said
// that it took it, and after its stream is closed.
func (m *model) write() {
	m.need(len(m.owed) > 0)
	at := m.pick(len(m.owed), "frame")
	f := m.owed[at]
	m.owed = slices.Delete(m.owed, at, at+1)
	m.do(func(e *Engine) { e.Written(f) })
}

// receive is the client's side: this is where I5 is judged.
func (m *model) receive(c *client, f *Frame) {
	switch f.Kind {
	case Applied:
		m.applied(c, f)
	case Messages:
		if len(f.Envelopes) == 0 {
			m.t.Fatal("an empty frame")
		}
		bytes := 0
		for _, e := range f.Envelopes {
			bytes += e.FramedSize()
			m.envelope(c, e)
		}
		if bytes != f.Bytes || bytes > m.config.FrameBytes && len(f.Envelopes) > 1 {
			m.t.Fatalf("a frame of %d bytes says %d, at most %d are allowed", bytes, f.Bytes, m.config.FrameBytes)
		}
	}
}

func (m *model) applied(c *client, f *Frame) {
	if len(c.sent) == 0 || c.sent[0].ID != f.ID {
		m.t.Fatalf("Applied %d answers no update that waits", f.ID)
	}
	u := c.sent[0]
	c.sent = c.sent[1:]
	for _, name := range u.Removes {
		delete(c.cursors, name)
	}
	var names []topic.Topic
	for _, add := range u.Adds {
		if _, active := c.cursors[add.Topic]; !active {
			names = append(names, add.Topic)
			c.cursors[add.Topic] = add.Cursor
		}
	}
	if len(names) != len(f.Targets) {
		m.t.Fatalf("Applied has %d targets, expected %d", len(f.Targets), len(names))
	}
	for i, target := range f.Targets {
		if target.Topic != names[i] {
			m.t.Fatal("targets are not in add order")
		}
	}
}

func (m *model) envelope(c *client, e *Envelope) {
	var of row
	for _, r := range m.log {
		if r.id == e.SequenceID {
			of = r
		}
	}
	cursor, active := c.cursors[of.name]
	if !active {
		m.t.Fatalf("envelope %d of a topic that is not registered", e.SequenceID)
	}
	for _, r := range m.table[of.name] {
		if r.id <= cursor {
			continue
		}
		if r.id != e.SequenceID {
			m.t.Fatalf("envelope %d came, %d is the one after %d", e.SequenceID, r.id, cursor)
		}
		break
	}
	if e.SequenceID <= cursor {
		m.t.Fatalf("envelope %d came, the cursor was %d", e.SequenceID, cursor)
	}
	c.cursors[of.name] = e.SequenceID
}

func (m *model) ping() {
	c := m.client()
	m.do(func(e *Engine) { e.Control(c.session, &Frame{Kind: Pong, Nonce: 1}) })
}

func (m *model) disconnect() {
	m.need(m.pick(3, "really") == 0)
	m.drop(m.client())
}

func (m *model) drop(c *client) {
	for more := true; more; {
		m.do(func(e *Engine) { more = e.Close(c.session) })
	}
	m.clients = slices.DeleteFunc(m.clients, func(other *client) bool { return other == c })
}

// loseDatabase may lead to another replica, which is behind.
func (m *model) loseDatabase() {
	m.need(!m.lost && m.pick(3, "really") == 0)
	m.lost = true
	m.do((*Engine).Lost)
	for _, p := range m.pages {
		m.do(func(e *Engine) { e.FetchFailed(p.fetch) })
	}
	m.pages = nil
}

func (m *model) findDatabase() {
	m.need(m.lost)
	m.lost = false
	m.visible = m.pick(m.visible+1, "behind")
	m.swept = min(m.swept, m.visible)
	m.sweep, m.sweepTo = nil, 0
	m.do((*Engine).Found)
}

// check holds after every event.
func (m *model) check() {
	e := m.engine
	switch {
	case e.notices.budget.Used() > int64(m.config.NoticeBytes):
		m.t.Fatalf("%d bytes of notices are kept, at most %d are allowed", e.notices.budget.Used(), m.config.NoticeBytes)
	case e.output.used-m.forced() > m.config.BudgetBytes:
		m.t.Fatalf("%d bytes are in use, at most %d are allowed", e.output.used-m.forced(), m.config.BudgetBytes)
	case e.inFlight > m.config.Fetches:
		m.t.Fatalf("%d fetches run, at most %d are allowed", e.inFlight, m.config.Fetches)
	}
	for _, c := range m.clients {
		envelopes, frames := 0, 0
		for _, f := range slices.Concat(c.session.out.live.frames, c.session.out.history.frames, c.session.out.owed, []*Frame{c.session.out.sending}) {
			if f != nil && f.Kind == Messages {
				envelopes += f.Bytes
				frames++
			}
		}
		if envelopes > m.config.SessionBytes || frames > m.config.SessionFrames {
			m.t.Fatalf("a session holds %d bytes in %d frames", envelopes, frames)
		}
	}
}

// forced is what is counted without being asked for: frames without envelopes, and
// what the buffers of a frame in the transport may be too long.
func (m *model) forced() (bytes int) {
	for _, c := range m.clients {
		for _, f := range slices.Concat(c.session.out.control, c.session.out.live.frames, []*Frame{c.session.out.sending}) {
			if f != nil && f.Kind != Messages {
				bytes += f.Bytes
			}
		}
	}
	for _, f := range m.owed {
		bytes += f.charged
	}
	for _, c := range m.clients {
		if f := c.session.out.sending; f != nil && f.Owed && !slices.Contains(m.owed, f) {
			bytes += f.charged // the client is about to get it, or it is written
		}
	}
	return bytes
}

// settle lets everything arrive and requires that every client has everything.
func (m *model) settle() {
	if m.lost {
		m.lost = false
		m.do((*Engine).Found)
	}
	m.visible = len(m.log)
	m.notices, m.sweep = nil, nil
	// What no notice announced since the window of a lost replica is found again.
	for round := 0; ; round++ {
		busy := m.quiesce()
		for _, r := range m.log[m.swept:m.visible] {
			m.do(func(e *Engine) { e.Raise(r.name, r.id) })
		}
		m.swept = m.visible
		m.tick()
		if !busy && round > 2 {
			break
		}
		if round > 1000 {
			m.t.Fatal("the engine does not come to rest")
		}
	}
	for _, c := range m.clients {
		for name, cursor := range c.cursors {
			if rows := m.table[name]; len(rows) > 0 && rows[len(rows)-1].id > cursor {
				m.t.Fatalf("a client has %d of a topic whose head is %d", cursor, rows[len(rows)-1].id)
			}
		}
		for _, r := range c.session.registrations {
			if r.state != current {
				m.t.Fatalf("a registration is in state %d at rest", r.state)
			}
		}
	}
	m.live()
	m.empty()
}

// quiesce does all work that is left once.
func (m *model) quiesce() (busy bool) {
	for len(m.pages) > 0 {
		busy = true
		p := m.pages[0]
		m.pages = m.pages[1:]
		if p.results == nil {
			m.read(p)
		}
		m.answer(p)
	}
	for _, c := range slices.Clone(m.clients) {
		for c.step && slices.Contains(m.clients, c) {
			busy = true
			switch {
			case c.heads != nil:
				m.tellHeadsOf(c)
			case c.asks:
				m.readHeadsOf(c)
				if c.heads == nil {
					c.heads = []topic.SequenceID{}
				}
			default:
				m.stepOf(c)
			}
		}
		for slices.Contains(m.clients, c) && m.takeOf(c) {
			busy = true
		}
	}
	return m.writeAll() || busy
}

func (m *model) writeAll() (busy bool) {
	for len(m.owed) > 0 {
		busy = true
		f := m.owed[0]
		m.owed = m.owed[1:]
		m.do(func(e *Engine) { e.Written(f) })
	}
	return busy
}

// live requires that at rest a notice is delivered without a read, if the budget has
// room for it on all streams.
func (m *model) live() {
	if m.engine.output.free() < 4*budgetShare*(m.config.EnvelopeBytes+frameBytes) {
		return
	}
	m.publish()
	for _, r := range m.notices {
		if !r.inline() {
			return
		}
		m.tell(r)
		for _, c := range m.clients {
			for m.takeOf(c) || m.writeAll() {
			}
			if cursor, active := c.cursors[r.name]; active && cursor < r.id {
				m.t.Fatalf("a current registration waits for %d", r.id)
			}
		}
	}
	if len(m.pages) > 0 {
		m.t.Fatal("a current registration reads from the database")
	}
}

// empty requires that nothing is left of closed sessions.
func (m *model) empty() {
	for _, c := range slices.Clone(m.clients) {
		m.drop(c)
	}
	m.writeAll()
	e := m.engine
	if len(e.topics) > 0 || len(e.sessions) > 0 || e.registered != 0 || e.output.used != 0 || e.registrations.used != 0 || e.notices.budget.Used() != 0 {
		m.t.Fatalf("left over: %d topics, %d sessions, %d registrations, %d bytes, %d bytes of notices",
			len(e.topics), len(e.sessions), e.registered, e.output.used, e.notices.budget.Used())
	}
}
