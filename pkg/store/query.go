package store

import (
	"context"
	_ "embed"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

var (
	//go:embed sql/query.sql
	querySQL string
	//go:embed sql/query_one.sql
	queryOneSQL string

	queryStatement    = statement{"a page of a query", querySQL}
	queryOneStatement = statement{"a page of a query of one topic", queryOneSQL}
)

// Query asks for the envelopes above a cursor on each of some topics.
type Query struct {
	// Topics are distinct. Those named first are served first when there are
	// more topics than rows in a page.
	Topics []topic.Topic
	// Cursors are aligned with Topics; rows are strictly above.
	Cursors []topic.SequenceID
	// Limit is the most rows of the page, at least 1.
	Limit int
	// MaxBytes is the most that the encoded page may take.
	MaxBytes int
}

// Sheet is what a page is written on.
type Sheet interface {
	// Expect says about how many bytes the page is going to have.
	Expect(bytes int)
	// Add encodes one stored envelope. The payload is valid during the call only; it
	// is nil when the read was of metadata.
	Add(meta *envelope.Meta, payload []byte)
	// Len is how many bytes were written.
	Len() int
	// Reset forgets what was written.
	Reset()
}

// Page is what a read found.
type Page struct {
	Rows int
	// More says that rows above the cursors are left, in the same snapshot
	// (API-073).
	More bool
	// Needs is 0 when the page is on the sheet. Else there was no room for it, the
	// sheet is empty, and it would have taken at most so many bytes.
	Needs int
}

// Query reads one page: rows ascend within each topic, each topic is served by a
// fair share of the page before any is served further, and the page is full if
// there are rows enough. A page longer than MaxBytes is TooLong. One longer than
// room is not read: only how long it is.
func (p *Pool) Query(ctx context.Context, q Query, room int, sheet Sheet) (Page, error) {
	if len(q.Topics) == 0 {
		return Page{}, nil
	}
	rows := max(1, q.Limit)
	room = min(room, q.MaxBytes)
	s, params := q.statement(rows, room)
	b := pageBuilder{topics: q.Topics, limit: rows, max: q.MaxBytes, room: room, sheet: sheet, full: true}
	err := p.read(ctx, s, params, b.reset, b.add)
	return b.end(), err
}

// statement is what reads a page of some rows, with payloads if they take at most
// the given bytes.
func (q *Query) statement(rows, bytes int) (statement, [][]byte) {
	limit, most := bigint(int64(rows)), bigint(int64(bytes))
	if len(q.Topics) == 1 {
		return queryOneStatement, [][]byte{[]byte(q.Topics[0]), bigint(int64(q.Cursors[0])), limit, most}
	}
	return queryStatement, [][]byte{
		topicArray(len(q.Topics), func(i int) topic.Topic { return q.Topics[i] }),
		bigintArray(len(q.Topics), func(i int) int64 { return int64(q.Cursors[i]) }),
		limit,
		bigint(int64(max(1, rows/len(q.Topics)))),
		most,
	}
}

// pageBuilder encodes the rows of a read, which begin with the place of their
// topic in the request and, with payloads, the bytes of all payloads together.
type pageBuilder struct {
	topics []topic.Topic
	limit  int
	max    int
	room   int
	sheet  Sheet
	full   bool
	page   Page
	// payloads is the bytes of all payloads together.
	payloads int64
	// cramped says that the page does not fit into the room, and is only measured.
	cramped bool
}

// maxRowsHint bounds what is expected for the metadata of rows that may not come.
const (
	maxRowsHint = 64
	metaHint    = 160
)

func (b *pageBuilder) reset() {
	b.sheet.Reset()
	b.page, b.payloads, b.cramped = Page{}, 0, false
}

func (b *pageBuilder) add(values [][]byte) error {
	c := columns{values: values}
	n := c.int64()
	if b.full {
		b.payloads = c.int64()
	}
	if b.payloads > int64(b.max) {
		return tooLong()
	}
	if b.page.Rows == b.limit {
		b.page.More = true
		return c.err
	}
	if b.page.Rows == 0 {
		b.sheet.Expect(int(b.payloads) + metaHint*min(b.limit, maxRowsHint))
		b.cramped = b.payloads > int64(b.room)
	}
	b.page.Rows++
	if b.cramped {
		return c.err
	}
	var payload []byte
	meta := c.meta(b.topics[n-1])
	if b.full {
		payload = c.bytes()
	}
	if c.err != nil {
		return c.err
	}
	if b.room < b.max && b.sheet.Len()+len(payload)+limit.EnvelopeOverheadBytes > b.room {
		b.cramped = true
		b.sheet.Reset()
		return nil
	}
	b.sheet.Add(&meta, payload)
	if b.sheet.Len() > b.max {
		return tooLong()
	}
	return nil
}

func (b *pageBuilder) end() Page {
	if b.cramped {
		b.page.Needs = int(b.payloads) + limit.EnvelopeOverheadBytes*b.page.Rows
	}
	return b.page
}

func tooLong() error {
	return fault.Errorf(fault.TooLong, "the response would be longer than the server's limit for a response: ask for fewer envelopes at a time")
}
