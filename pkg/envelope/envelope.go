// Package envelope writes stored envelopes and their metadata as the wire
// messages of xmtp.backend.v1 without decoding them: the stored bytes of a
// ClientEnvelope are spliced into a ServerEnvelope as they are (API-023). Each
// Append function gives the bytes that protobuf gives for the same message, in
// field-number order.
package envelope

import (
	"crypto/sha256"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// MessageHash is the SHA-256 of the stored bytes of an envelope (API-020). With
// the topic it is the idempotency key (API-033).
type MessageHash [sha256.Size]byte

// HashOf returns the hash of the canonical bytes of an envelope.
func HashOf(canonical []byte) MessageHash { return sha256.Sum256(canonical) }

// Meta is what the backend assigned to a stored envelope (API-020, API-021).
type Meta struct {
	Topic      topic.Topic
	SequenceID topic.SequenceID
	// ServerNS is the start of the storing transaction, in nanoseconds since the
	// Unix epoch.
	ServerNS int64
	// ExpiryNS is the earliest time the row may be deleted; 0 is never (API-021).
	ExpiryNS           int64
	MessageHash        MessageHash
	IsCommitOrProposal bool
}

// Field numbers of the wire messages.
const (
	cursorSequenceID = 1

	metaCursor             = 1
	metaServerNS           = 2
	metaMessageHash        = 3
	metaTopic              = 4
	metaExpiryNS           = 5
	metaIsCommitOrProposal = 6

	hashSHA256 = 1
	topicTopic = 1

	serverMeta     = 1
	serverEnvelope = 2
)

// hashFieldSize is the encoded MessageHash message: tag, length, 32 bytes.
const hashFieldSize = 2 + sha256.Size

// Size is the number of bytes that AppendMeta adds.
func (m *Meta) Size() int {
	cursor := varintFieldSize(uint64(m.SequenceID))
	n := 1 + protowire.SizeBytes(cursor)
	n += varintFieldSize(uint64(m.ServerNS))
	n += 1 + protowire.SizeBytes(hashFieldSize)
	n += 1 + protowire.SizeBytes(TopicSize(m.Topic))
	n += varintFieldSize(uint64(m.ExpiryNS))
	if m.IsCommitOrProposal {
		n += 2
	}
	return n
}

// AppendMeta appends the fields of an EnvelopeMeta message.
func AppendMeta(dst []byte, m *Meta) []byte {
	dst = protowire.AppendTag(dst, metaCursor, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(varintFieldSize(uint64(m.SequenceID))))
	dst = appendVarintField(dst, cursorSequenceID, uint64(m.SequenceID))
	dst = appendVarintField(dst, metaServerNS, uint64(m.ServerNS))
	dst = protowire.AppendTag(dst, metaMessageHash, protowire.BytesType)
	dst = protowire.AppendVarint(dst, hashFieldSize)
	dst = protowire.AppendTag(dst, hashSHA256, protowire.BytesType)
	dst = protowire.AppendBytes(dst, m.MessageHash[:])
	dst = AppendTopicField(dst, metaTopic, m.Topic)
	dst = appendVarintField(dst, metaExpiryNS, uint64(m.ExpiryNS))
	if m.IsCommitOrProposal {
		dst = appendVarintField(dst, metaIsCommitOrProposal, 1)
	}
	return dst
}

// AppendMetaField appends the metadata as field number of an outer message.
func AppendMetaField(dst []byte, number protowire.Number, m *Meta) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(m.Size()))
	return AppendMeta(dst, m)
}

// ServerSize is the number of bytes that AppendServer adds.
func ServerSize(m *Meta, payload []byte) int { return serverSize(m, len(payload)) }

func serverSize(m *Meta, payload int) int {
	return 1 + protowire.SizeBytes(m.Size()) + 1 + protowire.SizeBytes(payload)
}

// AppendServer appends the fields of a ServerEnvelope: the metadata and the
// stored bytes of the ClientEnvelope.
func AppendServer(dst []byte, m *Meta, payload []byte) []byte {
	return append(appendServerHead(dst, m, len(payload)), payload...)
}

func appendServerHead(dst []byte, m *Meta, payload int) []byte {
	dst = AppendMetaField(dst, serverMeta, m)
	dst = protowire.AppendTag(dst, serverEnvelope, protowire.BytesType)
	return protowire.AppendVarint(dst, uint64(payload))
}

// AppendServerField appends the ServerEnvelope as field number of an outer
// message: a page of a query, a frame of a stream.
func AppendServerField(dst []byte, number protowire.Number, m *Meta, payload []byte) []byte {
	return append(AppendServerFieldHead(dst, number, m, len(payload)), payload...)
}

// AppendServerFieldHead is AppendServerField without the stored bytes, of which
// there are payload and which the caller appends.
func AppendServerFieldHead(dst []byte, number protowire.Number, m *Meta, payload int) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(serverSize(m, payload)))
	return appendServerHead(dst, m, payload)
}

// TopicSize is the encoded size of a Topic message.
func TopicSize(t topic.Topic) int { return 1 + protowire.SizeBytes(len(t)) }

// AppendTopicField appends a Topic message as field number of an outer message.
func AppendTopicField(dst []byte, number protowire.Number, t topic.Topic) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(TopicSize(t)))
	dst = protowire.AppendTag(dst, topicTopic, protowire.BytesType)
	return protowire.AppendString(dst, string(t))
}

// varintFieldSize is for field numbers below 16; proto3 leaves a zero out.
func varintFieldSize(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func appendVarintField(dst []byte, number protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, number, protowire.VarintType)
	return protowire.AppendVarint(dst, v)
}
