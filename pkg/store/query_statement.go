package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// readSettings make the plans of the reads the same on an empty table and on a
// large one. Every read here is meant to probe an index once per topic; a plan
// made while a table was small must not leave a scan behind that lives on in a
// prepared statement.
var readSettings = map[string]string{
	"plan_cache_mode":                 "force_generic_plan",
	"enable_seqscan":                  "off",
	"enable_bitmapscan":               "off",
	"enable_hashagg":                  "off",
	"jit":                             "off",
	"max_parallel_workers_per_gather": "0",
	"default_transaction_read_only":   "on",
}

// ForReads are the options of a pool that only reads.
func ForReads() []Option {
	options := make([]Option, 0, len(readSettings)+1)
	for name, value := range readSettings {
		options = append(options, WithSetting(name, value))
	}
	return append(options, keepWhenCancelled)
}

const (
	// cancelAfter is how long a read may go on whose caller went away. Most end
	// within; then the server is asked to stop.
	cancelAfter = 200 * time.Millisecond
	// abandonAfter is when its connection is given up.
	abandonAfter = time.Second
)

// keepWhenCancelled keeps the connection of a cancelled read. The driver's own
// way is to close it, so that clients who call and go away would have the
// database start a process for every call.
func keepWhenCancelled(c *pgxpool.Config) {
	c.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, CancelRequestDelay: cancelAfter, DeadlineDelay: abandonAfter}
	}
}

// statement is one of the embedded reads, prepared once per connection under
// its name. Parameters and results are in PostgreSQL's binary form: a request
// with a hundred thousand topics is one buffer, and stored payloads are copied
// once, from the network buffer to where they are needed.
type statement struct{ name, sql string }

// binaryFormat asks for the binary form of all parameters or results.
var binaryFormat = []int16{1}

// run executes the statement and hands each row to each; the values are valid
// during the call only.
func (s statement) run(ctx context.Context, conn *pgxpool.Conn, params [][]byte, each func(values [][]byte) error) error {
	description, err := conn.Conn().Prepare(ctx, s.name, s.sql)
	if err != nil {
		return err
	}
	result := conn.Conn().PgConn().ExecStatement(ctx, description, params, binaryFormat, binaryFormat)
	var failed error
	for failed == nil && result.NextRow() {
		failed = each(result.Values())
	}
	_, err = result.Close()
	return errors.Join(failed, err)
}

const (
	// recoveryRetries bounds how often a statement is repeated that the replay of
	// a standby cancelled, and is the least for one whose session was ended.
	recoveryRetries = 5
	// answerGrace is what the network gets beyond the server's own time limit. A
	// server that vanished without a word is given up after that.
	answerGrace = time.Second
)

// read runs one read-only statement; reset forgets the rows of a run that did
// not finish. An answer that does not come is Unavailable.
func (p *Pool) read(ctx context.Context, s statement, params [][]byte, reset func(), each func(values [][]byte) error) error {
	err := p.repeatedly(ctx, func() error {
		reset()
		return p.with(ctx, "read "+s.name, func(conn *pgxpool.Conn) error {
			return p.answered(ctx, func(ctx context.Context) error { return s.run(ctx, conn, params, each) })
		})
	})
	if isUndefinedTable(err) {
		return fault.Wrap(fault.Unavailable, err, "the database has no schema yet")
	}
	return err
}

// repeatedly runs a read again when the replay of a standby cancelled it, or when
// its session was ended: neither says that the server cannot answer. All idle
// sessions may have been ended together, so there are as many repetitions as there
// can be sessions; a server that has gone refuses the next connection.
func (p *Pool) repeatedly(ctx context.Context, run func() error) error {
	for cancelled, ended := 1, 0; ; {
		err := run()
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case isSQLState(err, sqlSerializationFailure) && cancelled < recoveryRetries:
			cancelled++
		case isSessionEnd(err) && ended < max(recoveryRetries, int(p.sessions)):
			ended++
		default:
			return err
		}
	}
}

// answered bounds the wait for the server's answer. It tells the end of the
// caller's context apart from a server that does not answer, whichever error
// that left behind.
func (p *Pool) answered(ctx context.Context, ask func(context.Context) error) error {
	waiting, cancel := context.WithTimeout(ctx, p.answer)
	defer cancel()
	err := ask(waiting)
	switch {
	case err == nil || waiting.Err() == nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	default:
		return fault.Wrap(fault.Unavailable, err, "the database did not answer within %v", p.answer)
	}
}

// The binary form of a one-dimensional array: dimensions, a flag for nulls, the
// type of the elements, their number, the lowest index; then each element after
// its length.
const arrayHeader = 20

func appendArrayHeader(dst []byte, elementOID uint32, n int) []byte {
	dimensions := uint32(1)
	if n == 0 {
		dimensions = 0
	}
	dst = binary.BigEndian.AppendUint32(dst, dimensions)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, elementOID)
	if n == 0 {
		return dst
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(n))
	return binary.BigEndian.AppendUint32(dst, 1)
}

// topicArray is a bytea[] parameter.
func topicArray(n int, at func(int) topic.Topic) []byte {
	dst := appendArrayHeader(make([]byte, 0, arrayHeader+n*(4+1+topic.KeyLength)), pgtype.ByteaOID, n)
	for i := range n {
		name := at(i)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(name)))
		dst = append(dst, name...)
	}
	return dst
}

// bigintArray is a bigint[] parameter.
func bigintArray(n int, at func(int) int64) []byte {
	dst := appendArrayHeader(make([]byte, 0, arrayHeader+n*12), pgtype.Int8OID, n)
	for i := range n {
		dst = binary.BigEndian.AppendUint32(dst, 8)
		dst = binary.BigEndian.AppendUint64(dst, uint64(at(i)))
	}
	return dst
}

// integerArray is an integer[] parameter.
func integerArray(n int, at func(int) int32) []byte {
	dst := appendArrayHeader(make([]byte, 0, arrayHeader+n*8), pgtype.Int4OID, n)
	for i := range n {
		dst = binary.BigEndian.AppendUint32(dst, 4)
		dst = binary.BigEndian.AppendUint32(dst, uint32(at(i)))
	}
	return dst
}

func bigint(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

// columns reads the values of a row, in order. The first value that is not as
// expected is remembered: it is a defect of the statement, not of the data.
type columns struct {
	values [][]byte
	err    error
}

func (c *columns) next(length int) []byte {
	if len(c.values) == 0 {
		c.err = errors.New("a statement has fewer columns than expected")
		return make([]byte, max(length, 0))
	}
	value := c.values[0]
	c.values = c.values[1:]
	if length >= 0 && len(value) != length {
		c.err = fmt.Errorf("a column has %d bytes, expected %d", len(value), length)
		return make([]byte, length)
	}
	return value
}

func (c *columns) int64() int64  { return int64(binary.BigEndian.Uint64(c.next(8))) }
func (c *columns) int32() int32  { return int32(binary.BigEndian.Uint32(c.next(4))) }
func (c *columns) bool() bool    { return c.next(1)[0] != 0 }
func (c *columns) bytes() []byte { return c.next(-1) }

func (c *columns) isNull() bool { return len(c.values) > 0 && c.values[0] == nil }
