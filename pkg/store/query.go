package store

import (
	"context"
	_ "embed"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
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
	// Buffer gives an empty buffer with room for some bytes, for the page.
	Buffer func(size int) []byte
}

// Encode appends one stored envelope to a response. The payload is valid during
// the call only; it is nil when the read was of metadata.
type Encode func(dst []byte, meta *envelope.Meta, payload []byte) []byte

// Page is the encoded envelopes of one read.
type Page struct {
	Encoded []byte
	Rows    int
	// More says that rows above the cursors are left, in the same snapshot
	// (API-073).
	More bool
}

// Query reads one page: rows ascend within each topic, each topic is served by a
// fair share of the page before any is served further, and the page is full if
// there are rows enough. A page longer than MaxBytes is TooLong.
func (p *Pool) Query(ctx context.Context, q Query, encode Encode) (Page, error) {
	if len(q.Topics) == 0 {
		return Page{}, nil
	}
	rows := max(1, q.Limit)
	s, params := q.statement(rows)
	b := pageBuilder{topics: q.Topics, limit: rows, max: q.MaxBytes, encode: encode, buffer: q.Buffer, full: true}
	err := p.read(ctx, s, params, b.reset, b.add)
	return b.page, err
}

// statement is what reads a page of some rows.
func (q *Query) statement(rows int) (statement, [][]byte) {
	limit, most := bigint(int64(rows)), bigint(int64(q.MaxBytes))
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
	encode Encode
	buffer func(size int) []byte
	full   bool
	page   Page
}

// metaRoom is about what the metadata and framing of an envelope take.
const metaRoom = 160

func (b *pageBuilder) reset() { b.page = Page{} }

func (b *pageBuilder) add(values [][]byte) error {
	c := columns{values: values}
	n := c.int64()
	bytes := int64(0)
	if b.full {
		bytes = c.int64()
	}
	if bytes > int64(b.max) {
		return tooLong()
	}
	if b.page.Rows == b.limit {
		b.page.More = true
		return c.err
	}
	if b.page.Encoded == nil {
		b.page.Encoded = b.buffer(int(bytes) + metaRoom*min(b.limit, maxRowsHint))
	}
	var payload []byte
	meta := c.meta(b.topics[n-1])
	if b.full {
		payload = c.bytes()
	}
	if c.err != nil {
		return c.err
	}
	b.page.Encoded = b.encode(b.page.Encoded, &meta, payload)
	b.page.Rows++
	if len(b.page.Encoded) > b.max {
		return tooLong()
	}
	return nil
}

// maxRowsHint bounds what is set aside for the metadata of rows that may not
// come.
const maxRowsHint = 64

func tooLong() error {
	return fault.Errorf(fault.TooLong, "the response would be longer than the server's limit for a response: ask for fewer envelopes at a time")
}
