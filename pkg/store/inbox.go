package store

import (
	"context"
	_ "embed"
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgtype"
)

//go:embed sql/inbox.sql
var inboxSQL string

var inboxStatement = statement{"the inboxes of identifiers", inboxSQL}

// Identifier is a normalized lookup key. It must be valid UTF-8 without a NUL
// byte.
type Identifier struct {
	Kind int16
	Key  string
}

// InboxID is the 32 bytes of an inbox id. Found is false when the identifier has
// no active association.
type InboxID struct {
	Bytes [32]byte
	Found bool
}

// InboxIDs resolves identifiers from one snapshot, aligned with the input.
func (p *Pool) InboxIDs(ctx context.Context, identifiers []Identifier) ([]InboxID, error) {
	if len(identifiers) == 0 {
		return nil, nil
	}
	inboxes := make([]InboxID, len(identifiers))
	err := p.read(ctx, inboxStatement, identifierArrays(identifiers), func() { clear(inboxes) }, func(values [][]byte) error {
		c := columns{values: values}
		inbox := &inboxes[c.int64()-1]
		inbox.Found = true
		copy(inbox.Bytes[:], c.next(len(inbox.Bytes)))
		return c.err
	})
	if err != nil {
		return nil, err
	}
	return inboxes, nil
}

// identifierArrays are a smallint[] and a text[] parameter in one buffer.
func identifierArrays(identifiers []Identifier) [][]byte {
	size := 2*arrayHeader + len(identifiers)*(6+4)
	for i := range identifiers {
		size += len(identifiers[i].Key)
	}
	buffer := appendArrayHeader(make([]byte, 0, size), pgtype.Int2OID, len(identifiers))
	for i := range identifiers {
		buffer = binary.BigEndian.AppendUint32(buffer, 2)
		buffer = binary.BigEndian.AppendUint16(buffer, uint16(identifiers[i].Kind))
	}
	kinds := len(buffer)
	buffer = appendArrayHeader(buffer, pgtype.TextOID, len(identifiers))
	for i := range identifiers {
		buffer = binary.BigEndian.AppendUint32(buffer, uint32(len(identifiers[i].Key)))
		buffer = append(buffer, identifiers[i].Key...)
	}
	return [][]byte{buffer[:kinds:kinds], buffer[kinds:]}
}
