// Package notice carries commit notices over NATS: what a publisher stored, told
// to every streamer at once. Notices are hints that may be lost, repeated or
// reordered; the previous head in each makes that harmless
// (docs/design.md#the-proof-in-a-notice).
package notice

import (
	"encoding/binary"
	"errors"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Lineage says which history of which cluster sequence ids belong to.
type Lineage struct {
	SystemIdentifier int64
	Timeline         int32
}

// Trace is the W3C trace context of a publish: 16 bytes of trace id, 8 of span
// id, 1 of flags. All zero is none.
type Trace [traceLength]byte

// Notice says that an envelope was stored.
type Notice struct {
	Topic      topic.Topic
	SequenceID topic.SequenceID
	// Previous is the sequence id of the envelope stored just before this one on
	// the topic; 0 for the first. Nothing lies between the two.
	Previous topic.SequenceID
	Lineage  Lineage
	Trace    Trace
	// Envelope is the encoded ServerEnvelope, or empty when it is longer than
	// the publisher's inline bound; the database has it.
	Envelope []byte
}

// The wire form: version, topic length, topic, then the fixed fields, then the
// envelope to the end. Big-endian.
const (
	version     = 1
	traceLength = 25
	fixedLength = 8 + 8 + 8 + 4 + traceLength
	// HeaderLength is the most that a notice adds to its envelope.
	HeaderLength = 2 + 1 + topic.KeyLength + fixedLength
)

// ErrMalformed is a notice that another version or another program sent.
var ErrMalformed = errors.New("malformed commit notice")

// Append appends the wire form of the notice.
func Append(dst []byte, n *Notice) []byte {
	dst = append(dst, version, byte(len(n.Topic)))
	dst = append(dst, n.Topic...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(n.SequenceID))
	dst = binary.BigEndian.AppendUint64(dst, uint64(n.Previous))
	dst = binary.BigEndian.AppendUint64(dst, uint64(n.Lineage.SystemIdentifier))
	dst = binary.BigEndian.AppendUint32(dst, uint32(n.Lineage.Timeline))
	dst = append(dst, n.Trace[:]...)
	return append(dst, n.Envelope...)
}

// Parse reads a notice. Its envelope aliases wire.
func Parse(wire []byte) (Notice, error) {
	if len(wire) < 2 || wire[0] != version {
		return Notice{}, ErrMalformed
	}
	length := int(wire[1])
	rest := wire[2:]
	if len(rest) < length+fixedLength {
		return Notice{}, ErrMalformed
	}
	name, err := topic.Parse(rest[:length])
	if err != nil {
		return Notice{}, ErrMalformed
	}
	fixed := rest[length:]
	n := Notice{
		Topic:      name,
		SequenceID: topic.SequenceID(binary.BigEndian.Uint64(fixed)),
		Previous:   topic.SequenceID(binary.BigEndian.Uint64(fixed[8:])),
		Lineage: Lineage{
			SystemIdentifier: int64(binary.BigEndian.Uint64(fixed[16:])),
			Timeline:         int32(binary.BigEndian.Uint32(fixed[24:])),
		},
		Trace:    Trace(fixed[28:]),
		Envelope: fixed[fixedLength:],
	}
	if n.Previous < 0 || n.SequenceID <= n.Previous {
		return Notice{}, ErrMalformed
	}
	return n, nil
}
