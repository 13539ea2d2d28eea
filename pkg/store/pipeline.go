package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// call is one execution of a statement.
type call struct {
	statement
	params [][]byte
	// row is called for each row; the values do not outlive it. It may be nil.
	row func(values [][]byte) error
}

// exchange executes calls in order, in one round trip. After a failure none of
// the later calls has run.
func exchange(ctx context.Context, conn *pgx.Conn, calls []call) error {
	descriptions := make([]*pgconn.StatementDescription, len(calls))
	for i := range calls {
		var err error
		if descriptions[i], err = conn.Prepare(ctx, calls[i].name, calls[i].sql); err != nil {
			return err
		}
	}
	pipeline := conn.PgConn().StartPipeline(ctx)
	for i := range calls {
		pipeline.SendQueryStatement(descriptions[i], calls[i].params, binaryFormat, binaryFormat)
	}
	err := pipeline.Sync()
	for i := 0; err == nil && i < len(calls); i++ {
		err = calls[i].read(pipeline)
	}
	closing := pipeline.Close()
	if err == nil {
		err = closing
	}
	return err
}

func (c *call) read(pipeline *pgconn.Pipeline) error {
	results, err := pipeline.GetResults()
	if err != nil {
		return err
	}
	reader, ok := results.(*pgconn.ResultReader)
	if !ok {
		return fmt.Errorf("%s: unexpected result %T", c.name, results)
	}
	var failed error
	for reader.NextRow() {
		if c.row != nil && failed == nil {
			failed = c.row(reader.Values())
		}
	}
	_, err = reader.Close()
	return errors.Join(err, failed)
}

// byteaArray is a bytea[] parameter.
func byteaArray[B ~[]byte | ~string](n int, at func(int) B) []byte {
	return stringArray(pgtype.ByteaOID, n, at)
}

// textArray is a text[] parameter.
func textArray(n int, at func(int) string) []byte { return stringArray(pgtype.TextOID, n, at) }

func stringArray[B ~[]byte | ~string](element uint32, n int, at func(int) B) []byte {
	size := arrayHeader
	for i := range n {
		size += 4 + len(at(i))
	}
	dst := appendArrayHeader(make([]byte, 0, size), element, n)
	for i := range n {
		one := at(i)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(one)))
		dst = append(dst, one...)
	}
	return dst
}

// smallintArray is a smallint[] parameter.
func smallintArray(n int, at func(int) int16) []byte {
	dst := appendArrayHeader(make([]byte, 0, arrayHeader+6*n), pgtype.Int2OID, n)
	for i := range n {
		dst = binary.BigEndian.AppendUint32(dst, 2)
		dst = binary.BigEndian.AppendUint16(dst, uint16(at(i)))
	}
	return dst
}

// booleanArray is a boolean[] parameter.
func booleanArray(n int, at func(int) bool) []byte {
	dst := appendArrayHeader(make([]byte, 0, arrayHeader+5*n), pgtype.BoolOID, n)
	for i := range n {
		dst = binary.BigEndian.AppendUint32(dst, 1)
		dst = append(dst, boolean(at(i))...)
	}
	return dst
}

// boolean is a boolean parameter.
func boolean(v bool) []byte {
	if v {
		return []byte{1}
	}
	return []byte{0}
}

func integer(v int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(v)) }

// sequenceIDs reads a bigint[] of one dimension without nulls.
func (c *columns) sequenceIDs() []topic.SequenceID {
	const element = 4 + 8
	value := c.bytes()
	if len(value) == 12 { // no dimension: no element
		return nil
	}
	if len(value) < arrayHeader || (len(value)-arrayHeader)%element != 0 {
		c.err = errors.New("a column is not an array of bigint")
		return nil
	}
	ids := make([]topic.SequenceID, 0, (len(value)-arrayHeader)/element)
	for rest := value[arrayHeader:]; len(rest) > 0; rest = rest[element:] {
		ids = append(ids, topic.SequenceID(binary.BigEndian.Uint64(rest[4:])))
	}
	return ids
}
