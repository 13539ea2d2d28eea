package mlstest

// Wire formats of an MLS message.
const (
	WirePublic     = 1
	WirePrivate    = 2
	WireWelcome    = 3
	WireGroupInfo  = 4
	WireKeyPackage = 5
)

// Content types of a group message.
const (
	ContentApplication = 1
	ContentProposal    = 2
	ContentCommit      = 3
)

// Sender types of a public message.
const (
	SenderMember          = 1
	SenderExternal        = 2
	SenderNewMemberCommit = 4
)

// GroupMessage is a message to a group, field by field. Which fields are
// written depends on WireFormat, SenderType and ContentType.
type GroupMessage struct {
	Version           uint16
	WireFormat        uint16
	GroupID           []byte
	Epoch             uint64
	ContentType       uint8
	AuthenticatedData []byte

	// Of a private message.
	SenderData []byte
	Ciphertext []byte

	// Of a public message. Content is written as it is: a vector for an
	// application message, or an encoded proposal or commit. A tag that is nil
	// is left out, one that is empty is not.
	SenderType      uint8
	SenderIndex     uint32
	Content         []byte
	Signature       []byte
	ConfirmationTag []byte
	MembershipTag   []byte
}

// Private returns a private message, the only kind that XMTP clients send. The
// encoded message takes about size + 100 bytes.
func (m *Maker) Private(content uint8, group [16]byte, epoch uint64, size int) GroupMessage {
	return GroupMessage{
		Version: 1, WireFormat: WirePrivate,
		GroupID: group[:], Epoch: epoch, ContentType: content,
		SenderData: m.Bytes(28), Ciphertext: m.Bytes(size),
	}
}

// Public returns a public message of a member with content in the clear:
// random application data of size bytes, a proposal that removes a member, or a
// commit with that proposal and a new path.
func (m *Maker) Public(content uint8, group [16]byte, epoch uint64, size int) GroupMessage {
	message := GroupMessage{
		Version: 1, WireFormat: WirePublic,
		GroupID: group[:], Epoch: epoch, ContentType: content,
		SenderType: SenderMember, SenderIndex: 3,
		Signature: m.Bytes(64), MembershipTag: m.Bytes(32),
	}
	switch content {
	case ContentApplication:
		message.Content = Vector(m.Bytes(size))
	case ContentProposal:
		message.Content = RemoveProposal(1)
	case ContentCommit:
		message.Content = Commit{
			Proposals: [][]byte{InlineProposal(RemoveProposal(1)), ProposalReference(m.Bytes(32))},
			Path:      m.UpdatePath(),
		}.Encode()
		message.ConfirmationTag = m.Bytes(32)
	}
	return message
}

// ApplicationMessage returns an encoded application message with a ciphertext
// of size bytes.
func (m *Maker) ApplicationMessage(group [16]byte, epoch uint64, size int) []byte {
	return m.Private(ContentApplication, group, epoch, size).Encode()
}

// ProposalMessage returns an encoded proposal.
func (m *Maker) ProposalMessage(group [16]byte, epoch uint64) []byte {
	return m.Private(ContentProposal, group, epoch, 200).Encode()
}

// CommitMessage returns an encoded commit as large as one of a small group.
func (m *Maker) CommitMessage(group [16]byte, epoch uint64) []byte {
	return m.Private(ContentCommit, group, epoch, 700).Encode()
}

// Encode returns the bytes of the message. A wire format other than public and
// private gets the header alone.
func (g GroupMessage) Encode() []byte {
	var w writer
	w.uint16(g.Version)
	w.uint16(g.WireFormat)
	switch g.WireFormat {
	case WirePublic:
		g.encodePublic(&w)
	case WirePrivate:
		w.vector(g.GroupID)
		w.uint64(g.Epoch)
		w.uint8(g.ContentType)
		w.vector(g.AuthenticatedData)
		w.vector(g.SenderData)
		w.vector(g.Ciphertext)
	}
	return w.bytes
}

func (g GroupMessage) encodePublic(w *writer) {
	w.vector(g.GroupID)
	w.uint64(g.Epoch)
	w.uint8(g.SenderType)
	if g.SenderType == SenderMember || g.SenderType == SenderExternal {
		w.uint32(g.SenderIndex)
	}
	w.vector(g.AuthenticatedData)
	w.uint8(g.ContentType)
	w.raw(g.Content)
	for _, field := range [][]byte{g.Signature, g.ConfirmationTag, g.MembershipTag} {
		if field != nil {
			w.vector(field)
		}
	}
}

// Commit is the content of a public commit. Each proposal is encoded by
// InlineProposal or ProposalReference; a nil path is left out.
type Commit struct {
	Proposals [][]byte
	Path      []byte
}

// Encode returns the bytes of the commit.
func (c Commit) Encode() []byte {
	var list, w writer
	for _, proposal := range c.Proposals {
		list.raw(proposal)
	}
	w.vector(list.bytes)
	if c.Path == nil {
		w.uint8(0)
		return w.bytes
	}
	w.uint8(1)
	w.raw(c.Path)
	return w.bytes
}

// UpdatePath returns an encoded path of two nodes.
func (m *Maker) UpdatePath() []byte {
	leaf := m.leaf(m.InstallationKey())
	leaf.Source = SourceCommit
	leaf.ParentHash = m.Bytes(32)
	leaf.Signature = m.Bytes(64)
	var w, nodes writer
	w.raw(leaf.Encode())
	for range 2 {
		var secrets writer
		secrets.vector(m.Bytes(32))
		secrets.vector(m.Bytes(48))
		nodes.vector(m.Bytes(32))
		nodes.vector(secrets.bytes)
	}
	w.vector(nodes.bytes)
	return w.bytes
}

// InlineProposal is a proposal inside a commit.
func InlineProposal(proposal []byte) []byte { return append([]byte{1}, proposal...) }

// ProposalReference names a proposal that was sent before its commit.
func ProposalReference(hash []byte) []byte { return append([]byte{2}, Vector(hash)...) }

// Proposal is a proposal of any type with an encoded body.
func Proposal(kind uint16, body []byte) []byte {
	var w writer
	w.uint16(kind)
	w.raw(body)
	return w.bytes
}

// RemoveProposal proposes to remove the member at a leaf index.
func RemoveProposal(index uint32) []byte {
	var body writer
	body.uint32(index)
	return Proposal(3, body.bytes)
}

// Extensions encodes a list of extensions, the body of a proposal of type 7.
func Extensions(extensions []Extension) []byte {
	var w writer
	w.extensions(extensions)
	return w.bytes
}
