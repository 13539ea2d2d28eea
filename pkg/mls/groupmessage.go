// Package mls reads what clients publish in MLS (RFC 9420): the framing of
// group messages, and key packages with their signatures. It holds no group
// state: a group message is read as far as its clear text goes, and its
// signature and membership are for the members to check (API-041).
//
// Everything reads in place: results are parts of the input, which must not
// change while they are in use. Work and memory are bounded by the size of the
// input, whatever its length prefixes claim.
package mls

import "strconv"

// ContentType is what a group message carries.
type ContentType uint8

// The content types of RFC 9420.
const (
	ContentApplication ContentType = 1
	ContentProposal    ContentType = 2
	ContentCommit      ContentType = 3
)

// String names the content type in plain words.
func (c ContentType) String() string {
	switch c {
	case ContentApplication:
		return "application"
	case ContentProposal:
		return "proposal"
	case ContentCommit:
		return "commit"
	default:
		return "content type " + strconv.Itoa(int(c))
	}
}

// groupIDLength is in bytes. MLS allows any length, topics are made of this
// one (API-002).
const groupIDLength = 16

// GroupMessage is what the backend learns from a group message.
type GroupMessage struct {
	GroupID     [groupIDLength]byte
	Epoch       uint64
	ContentType ContentType
}

// IsCommitOrProposal says whether the message can change its group: what
// clients read separately from application messages (API-041).
func (m GroupMessage) IsCommitOrProposal() bool {
	return m.ContentType == ContentProposal || m.ContentType == ContentCommit
}

// The kinds of MLS message.
const (
	wirePublicMessage  = 1
	wirePrivateMessage = 2
	wireWelcome        = 3
	wireGroupInfo      = 4
	wireKeyPackage     = 5
)

// ParseGroupMessage reads the MLS message at the front of data (API-041). Bytes
// after it are ignored. The message is a PrivateMessage or a PublicMessage, and
// all of it is there; anything else is Invalid with reason MalformedPayload
// and a text that names the byte where it went wrong.
func ParseGroupMessage(data []byte) (GroupMessage, error) {
	r := newReader("group message", data)
	var message GroupMessage
	if version := r.uint16("version"); version != protocolVersion {
		r.fail(0, "the MLS version is %d, expected 1", version)
	}
	switch format := r.uint16("wire format"); format {
	case wirePrivateMessage:
		r.privateMessage(&message)
	case wirePublicMessage:
		r.publicMessage(&message)
	case wireWelcome, wireGroupInfo, wireKeyPackage:
		r.fail(2, "it is a %s, expected a PrivateMessage or a PublicMessage", wireName(format))
	default:
		r.fail(2, "the wire format is %d, expected 1 (PublicMessage) or 2 (PrivateMessage)", format)
	}
	if r.err != nil {
		return GroupMessage{}, r.err
	}
	return message, nil
}

func wireName(format uint16) string {
	switch format {
	case wireWelcome:
		return "Welcome"
	case wireGroupInfo:
		return "GroupInfo"
	default:
		return "KeyPackage"
	}
}

func (r *reader) privateMessage(m *GroupMessage) {
	r.groupAndEpoch(m)
	m.ContentType = r.contentType()
	r.vector("authenticated data")
	r.vector("encrypted sender data")
	r.vector("ciphertext")
}

func (r *reader) groupAndEpoch(m *GroupMessage) {
	start := r.at
	id := r.vector("group id")
	if r.err == nil && len(id) != groupIDLength {
		r.fail(start, "the group id has %d bytes, expected %d", len(id), groupIDLength)
	}
	copy(m.GroupID[:], id)
	m.Epoch = r.uint64("epoch")
}

func (r *reader) contentType() ContentType {
	start := r.at
	content := ContentType(r.uint8("content type"))
	if content < ContentApplication || content > ContentCommit {
		r.fail(start, "the content type is %d, expected 1 (application), 2 (proposal) or 3 (commit)", content)
	}
	return content
}

// The kinds of sender of a PublicMessage.
const (
	senderMember            = 1
	senderExternal          = 2
	senderNewMemberProposal = 3
	senderNewMemberCommit   = 4
)

// publicMessage reads a message that is signed but not encrypted. The content
// type comes late, and what follows decides whether the message is whole.
func (r *reader) publicMessage(m *GroupMessage) {
	r.groupAndEpoch(m)
	senderAt := r.at
	sender := r.uint8("sender type")
	switch sender {
	case senderMember, senderExternal:
		r.take(4, "sender index")
	case senderNewMemberProposal, senderNewMemberCommit:
	default:
		r.fail(senderAt, "the sender type is %d, expected 1 to 4", sender)
	}
	r.vector("authenticated data")
	m.ContentType = r.contentType()
	switch m.ContentType {
	case ContentApplication:
		r.vector("application data")
	case ContentProposal:
		r.proposal()
	case ContentCommit:
		r.commit()
	}
	r.vector("signature")
	if m.ContentType == ContentCommit {
		r.vector("confirmation tag")
	}
	if sender == senderMember {
		r.vector("membership tag")
	}
}
