package payload

import (
	"context"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// An envelope may consist of one message for each bytesPerPart of its encoding, and
// freeParts besides. It costs two bytes to say that there is a message and some
// dozens to hold one, so that an envelope of nothing but empty messages would take
// fifty times its length. Whatever clients send has a signature of 64 bytes, at
// least, for six messages.
const (
	bytesPerPart = 12
	freeParts    = 1000
)

// What decoding takes for each message and each field of bytes beside its content.
const (
	partBytes  = 104
	fieldBytes = 16
)

var (
	envelopeMessage  = (*backendv1.ClientEnvelope)(nil).ProtoReflect().Descriptor()
	signatureMessage = (*associations.Signature)(nil).ProtoReflect().Descriptor()
)

const (
	envelopeIdentityUpdate = 4
	retiredSignature       = 4
)

// scan is what the wire form of an envelope tells before anything is built of it.
type scan struct {
	parts, most int
	content     int
	// retired says that a signature of a retired kind stands beside another.
	retired bool
	// identity says that an identity update is being read.
	identity bool
}

// scanEnvelope refuses what consists of too many messages.
func scanEnvelope(raw []byte, maxBytes int) (*scan, error) {
	s := &scan{most: min(len(raw), maxBytes)/bytesPerPart + freeParts}
	if err := s.message(envelopeMessage, raw); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *scan) message(kind protoreflect.MessageDescriptor, raw []byte) error {
	if s.parts++; s.parts > s.most {
		return s.refusal()
	}
	var retired, listed bool
	m := wire.Read(raw)
	for m.Next() {
		field := known(kind, &m)
		if field == nil {
			continue
		}
		if kind == envelopeMessage {
			s.identity = m.Number() == envelopeIdentityUpdate
		}
		if kind == signatureMessage {
			retired, listed = retired || m.Number() == retiredSignature, listed || m.Number() != retiredSignature
		}
		if field.Message() == nil {
			s.content += len(m.Bytes()) + fieldBytes
		} else if err := s.message(field.Message(), m.Bytes()); err != nil {
			return err
		}
	}
	s.retired = s.retired || retired && listed
	if m.Err() != nil {
		return errNotWellFormed()
	}
	return nil
}

func (s *scan) refusal() error {
	reason := fault.MalformedPayload
	if s.identity {
		reason = fault.InvalidIdentityUpdate
	}
	return fault.Invalidf(reason, "the envelope consists of more than %d messages, expected at most one for each %d of its bytes and %d more",
		s.most, bytesPerPart, freeParts)
}

// weight is about what decoding takes.
func (s *scan) weight() int64 { return int64(s.parts)*partBytes + int64(s.content) }

// known is the field at hand if it has content and the message type has it.
func known(kind protoreflect.MessageDescriptor, m *wire.Message) protoreflect.FieldDescriptor {
	if !m.IsBytes(m.Number()) {
		return nil
	}
	field := kind.Fields().ByNumber(m.Number())
	if field == nil || field.Message() == nil && field.Kind() != protoreflect.BytesKind && field.Kind() != protoreflect.StringKind {
		return nil
	}
	return field
}

// withoutRetired is the message without its signatures of a retired kind where
// another stands beside it: there they are an unknown field, though our schema has a
// name for them.
func withoutRetired(kind protoreflect.MessageDescriptor, raw []byte) []byte {
	listed := false
	if kind == signatureMessage {
		for m := wire.Read(raw); m.Next(); {
			listed = listed || known(kind, &m) != nil && m.Number() != retiredSignature
		}
	}
	kept := make([]byte, 0, len(raw))
	for m := wire.Read(raw); m.Next(); {
		field := known(kind, &m)
		switch {
		case m.IsVarint(m.Number()):
			kept = protowire.AppendTag(kept, m.Number(), protowire.VarintType)
			kept = protowire.AppendVarint(kept, m.Varint())
		case field == nil, listed && m.Number() == retiredSignature:
		default:
			content := m.Bytes()
			if field.Message() != nil {
				content = withoutRetired(field.Message(), content)
			}
			kept = protowire.AppendTag(kept, m.Number(), protowire.BytesType)
			kept = protowire.AppendBytes(kept, content)
		}
	}
	return kept
}

// Weight is about how many bytes it takes to decode a stored envelope.
func Weight(canonical []byte) int64 {
	s := &scan{most: len(canonical)}
	if err := s.message(envelopeMessage, canonical); err != nil {
		return 0 // it does not decode at all
	}
	return s.weight()
}

// hold takes the weight of a decoding, if there is a budget for it.
func hold(ctx context.Context, decoding *budget.Holder, weight int64) (give func(), err error) {
	if decoding == nil {
		return func() {}, nil
	}
	if err := decoding.Take(ctx, weight); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "the server has no memory left to decode an envelope of this size now")
	}
	return func() { decoding.Give(weight) }, nil
}
