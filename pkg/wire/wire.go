// Package wire reads protobuf messages field by field, as the protobuf library
// would understand them, without building them in memory: a request of tens of
// thousands of topics is refused after a glance. It is the only reader of fields by
// hand, so that all roles are equally strict.
package wire

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// ErrMalformed is a request that is not a message of its type.
var ErrMalformed = fault.Invalidf(fault.NoReason, "the request is not a well-formed protobuf message of its type")

// Message goes through the fields of an encoded message:
//
//	m := wire.Read(raw)
//	for m.Next() {
//	    switch { case m.IsBytes(1): use(m.Bytes()) }
//	}
//	err := m.Err()
//
// What it returns aliases the message.
type Message struct {
	rest   []byte
	number protowire.Number
	kind   protowire.Type
	varint uint64
	bytes  []byte
	err    error
}

// Read starts at the first field of a message.
func Read(message []byte) Message { return Message{rest: message} }

// Next goes to the next field. It is false at the end and at the first byte
// that is not well formed.
func (m *Message) Next() bool {
	if len(m.rest) == 0 || m.err != nil {
		return false
	}
	number, kind, n := protowire.ConsumeTag(m.rest)
	if n < 0 || number > protowire.MaxValidNumber {
		return m.malformed()
	}
	m.number, m.kind = number, kind
	value := m.rest[n:]
	switch kind {
	case protowire.BytesType:
		m.bytes, n = protowire.ConsumeBytes(value)
	case protowire.VarintType:
		m.varint, n = protowire.ConsumeVarint(value)
	default:
		n = protowire.ConsumeFieldValue(number, kind, value)
	}
	if n < 0 {
		return m.malformed()
	}
	m.rest = value[n:]
	return true
}

func (m *Message) malformed() bool {
	m.err = ErrMalformed
	return false
}

// Err is why Next ended early, or nil.
func (m *Message) Err() error { return m.err }

// Number is the number of the field, whatever its type.
func (m *Message) Number() protowire.Number { return m.number }

// IsBytes says that the field is the given one, of bytes, a string or a
// message. A field of another type than expected is an unknown field.
func (m *Message) IsBytes(number protowire.Number) bool {
	return m.number == number && m.kind == protowire.BytesType
}

// IsVarint says that the field is the given one, of a number, an enum or a bool.
func (m *Message) IsVarint(number protowire.Number) bool {
	return m.number == number && m.kind == protowire.VarintType
}

// Bytes is the value of a field for which IsBytes is true.
func (m *Message) Bytes() []byte { return m.bytes }

// Varint is the value of a field for which IsVarint is true.
func (m *Message) Varint() uint64 { return m.varint }

// Text is Bytes of a string, which must be UTF-8.
func (m *Message) Text() []byte {
	if !utf8.Valid(m.bytes) {
		m.err = ErrMalformed
	}
	return m.bytes
}

// Count is how often a repeated field of bytes or messages occurs. It stops one
// past most: whoever exceeds a limit costs no more than that.
func Count(message []byte, number protowire.Number, most uint32) (int, error) {
	count := uint32(0)
	m := Read(message)
	for count <= most && m.Next() {
		if m.IsBytes(number) {
			count++
		}
	}
	return int(count), m.Err()
}
