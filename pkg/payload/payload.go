// Package payload reads one published ClientEnvelope: the topic it belongs to
// (API-001), the canonical bytes that are stored and hashed (API-020), and the
// flags that follow from its content. It is the structural half of validation:
// what fails here has no topic. The other half needs a clock, a history or a
// chain, and runs only for envelopes that are not stored yet (API-035).
package payload

import (
	"context"
	"encoding/hex"

	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/mls"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/mls/message_contents"
)

// Payload is a parsed envelope.
type Payload struct {
	Topic topic.Topic
	// Canonical is the deterministic encoding of the decoded envelope without
	// unknown fields. It may alias the bytes that were parsed.
	Canonical []byte
	Hash      envelope.MessageHash
	// IsCommitOrProposal is true for group messages of those content types.
	IsCommitOrProposal bool
	// KeyPackage is set on a key-package topic. Validate is still to be called.
	KeyPackage *mls.KeyPackage
}

// Parse reads an encoded ClientEnvelope of at most maxBytes, measured on its
// canonical form. Failures are Invalid with reason MalformedPayload, TooLarge or
// InvalidIdentityUpdate; the caller adds the index.
func Parse(raw []byte, maxBytes int) (*Payload, error) {
	return ParseWithin(context.Background(), raw, maxBytes, nil)
}

// ParseWithin is Parse with a budget for what is decoded for a moment, which may be
// several times the envelope. It waits for its turn behind other decodings, which
// wait for nothing, and fails as Unavailable when ctx ends before.
func ParseWithin(ctx context.Context, raw []byte, maxBytes int, decoding *budget.Holder) (*Payload, error) {
	parsed, err := parse(ctx, raw, maxBytes, decoding)
	if err != nil {
		return nil, err
	}
	parsed.Hash = envelope.HashOf(parsed.Canonical)
	return parsed, nil
}

func parse(ctx context.Context, raw []byte, maxBytes int, decoding *budget.Holder) (*Payload, error) {
	// Group messages are nearly all traffic, and clients send them canonical.
	if data, ok := canonicalGroupMessage(raw); ok {
		if err := checkSize(len(raw), maxBytes); err != nil {
			return nil, err
		}
		return groupMessage(data, raw)
	}
	scanned, err := scanEnvelope(raw, maxBytes)
	if err != nil {
		return nil, err
	}
	give, err := hold(ctx, decoding, scanned.weight())
	if err != nil {
		return nil, err
	}
	defer give()
	if scanned.retired {
		raw = withoutRetired(envelopeMessage, raw)
	}
	return decode(raw, maxBytes)
}

func errNotWellFormed() error {
	return fault.Invalidf(fault.MalformedPayload, "the envelope is not a well-formed ClientEnvelope message")
}

func decode(raw []byte, maxBytes int) (*Payload, error) {
	var decoded backendv1.ClientEnvelope
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, &decoded); err != nil {
		return nil, errNotWellFormed()
	}
	canonical, err := encode(&decoded)
	if err != nil {
		return nil, err
	}
	if err := checkSize(len(canonical), maxBytes); err != nil {
		return nil, err
	}
	switch content := decoded.GetPayload().(type) {
	case *backendv1.ClientEnvelope_GroupMessage:
		return groupMessage(content.GroupMessage.GetData(), canonical)
	case *backendv1.ClientEnvelope_WelcomeMessage:
		return welcome(content.WelcomeMessage, canonical)
	case *backendv1.ClientEnvelope_KeyPackage:
		return keyPackage(content.KeyPackage, canonical)
	case *backendv1.ClientEnvelope_IdentityUpdate:
		return identityUpdate(content.IdentityUpdate, canonical)
	case *backendv1.ClientEnvelope_CommitLogEntry:
		return commitLogEntry(content.CommitLogEntry, canonical)
	default:
		return nil, fault.Invalidf(fault.MalformedPayload,
			"the envelope has no payload, expected a group message, welcome, key package, identity update or commit-log entry")
	}
}

func encode(decoded *backendv1.ClientEnvelope) ([]byte, error) {
	canonical, err := proto.MarshalOptions{Deterministic: true}.Marshal(decoded)
	if err != nil {
		return nil, fault.Wrap(fault.Broken, err, "internal error")
	}
	return canonical, nil
}

func checkSize(size, maxBytes int) error {
	if size > maxBytes {
		return fault.Invalidf(fault.TooLarge, "the envelope has %d bytes, expected at most %d", size, maxBytes)
	}
	return nil
}

func groupMessage(data, canonical []byte) (*Payload, error) {
	message, err := mls.ParseGroupMessage(data)
	if err != nil {
		return nil, err
	}
	return at(topic.GroupMessage, message.GroupID[:], Payload{
		Canonical: canonical, IsCommitOrProposal: message.IsCommitOrProposal(),
	})
}

func welcome(message *backendv1.WelcomeMessage, canonical []byte) (*Payload, error) {
	switch version := message.GetVersion().(type) {
	case *backendv1.WelcomeMessage_V1_:
		return at(topic.Welcome, version.V1.GetInstallationKey(), Payload{Canonical: canonical})
	case *backendv1.WelcomeMessage_WelcomePointer_:
		return at(topic.Welcome, version.WelcomePointer.GetInstallationKey(), Payload{Canonical: canonical})
	default:
		return nil, fault.Invalidf(fault.MalformedPayload, "the welcome has no version, expected v1 or welcome_pointer")
	}
}

func keyPackage(message *backendv1.KeyPackage, canonical []byte) (*Payload, error) {
	parsed, err := mls.ParseKeyPackage(message.GetKeyPackageTlsSerialized())
	if err != nil {
		return nil, err
	}
	key := parsed.InstallationKey()
	return at(topic.KeyPackage, key[:], Payload{Canonical: canonical, KeyPackage: &parsed})
}

func identityUpdate(message *associations.IdentityUpdate, canonical []byte) (*Payload, error) {
	inbox, err := hex.DecodeString(message.GetInboxId())
	if err != nil || len(inbox) != topic.KeyLength {
		return nil, fault.Invalidf(fault.MalformedPayload, "the inbox id is not %d hex digits", hex.EncodedLen(topic.KeyLength))
	}
	return at(topic.IdentityUpdate, inbox, Payload{Canonical: canonical})
}

func commitLogEntry(message *backendv1.CommitLogEntry, canonical []byte) (*Payload, error) {
	var entry message_contents.PlaintextCommitLogEntry
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(message.GetSerializedCommitLogEntry(), &entry); err != nil {
		return nil, fault.Invalidf(fault.MalformedPayload, "the commit-log entry is not a well-formed PlaintextCommitLogEntry message")
	}
	return at(topic.CommitLog, entry.GetGroupId(), Payload{Canonical: canonical})
}

func at(kind topic.Kind, identifier []byte, parsed Payload) (*Payload, error) {
	name, err := topic.New(kind, identifier)
	if err != nil {
		return nil, err
	}
	parsed.Topic = name
	return &parsed, nil
}

// IdentityUpdate decodes the update of an identity topic. It is decoded on
// demand, since a decoded update can take many times its encoded size and a
// request can hold many.
func (p *Payload) IdentityUpdate() (*associations.IdentityUpdate, error) {
	return DecodeIdentityUpdate(p.Canonical)
}

// DecodeIdentityUpdate reads the update of a stored envelope. A failure is
// Broken: what is stored was parsed before.
func DecodeIdentityUpdate(canonical []byte) (*associations.IdentityUpdate, error) {
	var decoded backendv1.ClientEnvelope
	if err := proto.Unmarshal(canonical, &decoded); err != nil {
		return nil, fault.Wrap(fault.Broken, err, "internal error")
	}
	update := decoded.GetIdentityUpdate()
	if update == nil {
		return nil, fault.Errorf(fault.Broken, "internal error")
	}
	return update, nil
}
