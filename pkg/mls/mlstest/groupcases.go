package mlstest

import (
	"fmt"
	"slices"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// GroupMessageCase is a group message and what the backend makes of it. Its
// name begins with the number of the edge case it stands for.
type GroupMessageCase struct {
	Name string
	Data []byte
	// Reason is NoReason for a message that is accepted; the rest is of use for
	// those only.
	Reason             fault.Reason
	GroupID            [16]byte
	Epoch              uint64
	IsCommitOrProposal bool
}

// groupCases collects cases about one group and epoch.
type groupCases struct {
	maker *Maker
	group [16]byte
	epoch uint64
	cases []GroupMessageCase
}

// GroupMessageCases returns the edge cases of group messages, 1 to 29, all for
// one group, and further ways of breaking the structures of public messages.
func (m *Maker) GroupMessageCases() []GroupMessageCase {
	c := &groupCases{maker: m, group: m.GroupID(), epoch: 7}
	c.framing()
	c.groupIDs()
	c.vectors()
	c.public()
	c.proposals()
	c.commits()
	return c.cases
}

func (c *groupCases) accept(name string, data []byte, commitOrProposal bool) {
	c.cases = append(c.cases, GroupMessageCase{
		Name: name, Data: data, GroupID: c.group, Epoch: c.epoch, IsCommitOrProposal: commitOrProposal,
	})
}

func (c *groupCases) refuse(name string, data []byte) {
	c.cases = append(c.cases, GroupMessageCase{Name: name, Data: data, Reason: fault.MalformedPayload})
}

// private returns a private application message with a ciphertext of 100 bytes.
func (c *groupCases) private() GroupMessage {
	return c.maker.Private(ContentApplication, c.group, c.epoch, 100)
}

func (c *groupCases) framing() {
	m := c.maker
	c.accept("01 private application", m.ApplicationMessage(c.group, c.epoch, 100), false)
	c.accept("02 private proposal", m.ProposalMessage(c.group, c.epoch), true)
	c.accept("03 private commit", m.CommitMessage(c.group, c.epoch), true)
	c.refuse("04 content type 0", m.Private(0, c.group, c.epoch, 100).Encode())
	c.refuse("05 content type 4", m.Private(4, c.group, c.epoch, 100).Encode())
	c.accept("06 one trailing byte", append(c.private().Encode(), 0), false)
	second := m.Private(ContentCommit, m.GroupID(), c.epoch+1, 10)
	c.accept("07 a second message follows", append(c.private().Encode(), second.Encode()...), false)
	whole := c.private().Encode()
	c.refuse("08 last byte missing", whole[:len(whole)-1])
	c.refuse("09 empty", []byte{})
	c.refuse("10 header only", whole[:4])
	for _, version := range []uint16{0, 2} {
		message := c.private()
		message.Version = version
		c.refuse(fmt.Sprintf("11 version %d", version), message.Encode())
	}
	for _, other := range []struct {
		format uint16
		body   []byte
	}{
		{WireWelcome, slices.Concat([]byte{0, Suite}, Vector(m.Bytes(180)), Vector(m.Bytes(400)))},
		{WireGroupInfo, m.Bytes(200)},
		{WireKeyPackage, m.SignedKeyPackage(m.InstallationKey(), m.InboxID(), anyTime)},
	} {
		header := GroupMessage{Version: 1, WireFormat: other.format}.Encode()
		c.refuse(fmt.Sprintf("12 wire format %d", other.format), append(header, other.body...))
	}
	for _, format := range []uint16{0, 6, 0xffff} {
		message := slices.Clone(whole)
		message[2], message[3] = byte(format>>8), byte(format)
		c.refuse(fmt.Sprintf("13 wire format %d", format), message)
	}
}

func (c *groupCases) groupIDs() {
	for _, length := range []int{0, 15, 17, 32} {
		for _, message := range []GroupMessage{
			c.private(), c.maker.Public(ContentApplication, c.group, c.epoch, 10),
		} {
			message.GroupID = c.maker.Bytes(length)
			c.refuse(fmt.Sprintf("14 group id of %d bytes, wire format %d", length, message.WireFormat), message.Encode())
		}
	}
}

// groupIDAt is where the length of the group id is.
const groupIDAt = 4

func (c *groupCases) vectors() {
	whole := c.private().Encode()
	afterID := whole[groupIDAt+1+16:]
	withID := func(id []byte) []byte { return slices.Concat(whole[:groupIDAt], id, afterID) }
	c.refuse("15 group id length in two bytes", withID(VectorOfWidth(2, 16, c.group[:])))
	c.refuse("17 group id length in eight bytes", withID(VectorOfWidth(8, 16, c.group[:])))

	ciphertext := c.maker.Bytes(100)
	before := whole[:len(whole)-len(Vector(ciphertext))]
	c.refuse("16 ciphertext length in four bytes", slices.Concat(before, VectorOfWidth(4, 100, ciphertext)))
	c.refuse("17 ciphertext length in eight bytes", slices.Concat(before, VectorOfWidth(8, 100, ciphertext)))
	c.refuse("17 huge ciphertext length in eight bytes", slices.Concat(before, VectorOfWidth(8, 1<<40, ciphertext)))
	c.refuse("18 ciphertext length 2^30-1", slices.Concat(before, VectorOfWidth(4, 1<<30-1, ciphertext)))
	c.refuse("18 ciphertext length cut off", slices.Concat(before, []byte{0x80, 0x01}))

	message := c.private()
	message.SenderData, message.Ciphertext = nil, nil
	c.accept("19 empty ciphertext and sender data", message.Encode(), false)
	for _, length := range []int{63, 64, 16383, 16384} {
		message = c.private()
		message.AuthenticatedData = c.maker.Bytes(length)
		c.accept(fmt.Sprintf("20 authenticated data of %d bytes", length), message.Encode(), false)
	}
	c.epoch = 1<<64 - 1
	c.accept("21 the last epoch", c.private().Encode(), false)
	c.epoch = 7
}

func (c *groupCases) public() {
	m := c.maker
	message := m.Public(ContentApplication, c.group, c.epoch, 100)
	c.accept("22 public application", message.Encode(), false)
	message.MembershipTag = nil
	c.refuse("23 public application without membership tag", message.Encode())
	message.SenderType = SenderExternal
	c.accept("22 public application of an external sender", message.Encode(), false)

	commit := m.Public(ContentCommit, c.group, c.epoch, 0)
	c.accept("24 public commit of a member", commit.Encode(), true)
	commit.SenderType, commit.MembershipTag = SenderNewMemberCommit, nil
	c.accept("24 public commit of a new member", commit.Encode(), true)
	commit.ConfirmationTag = nil
	c.refuse("25 public commit without confirmation tag", commit.Encode())

	proposal := m.Public(ContentProposal, c.group, c.epoch, 0)
	proposal.Content = Proposal(0xf123, Vector(m.Bytes(20)))
	c.accept("26 public proposal of a private-use type", proposal.Encode(), true)
	proposal.Content = Proposal(10, nil)
	c.accept("27 public self-remove", proposal.Encode(), true)
	for _, sender := range []uint8{0, 5} {
		message = m.Public(ContentApplication, c.group, c.epoch, 100)
		message.SenderType = sender
		c.refuse(fmt.Sprintf("28 sender type %d", sender), message.Encode())
	}
	for _, content := range []uint8{0, 4} {
		message = m.Public(ContentApplication, c.group, c.epoch, 100)
		message.ContentType = content
		c.refuse(fmt.Sprintf("28 public content type %d", content), message.Encode())
	}
	c.refuse("29 no data", nil)
}

// proposals goes through each kind of proposal in the clear.
func (c *groupCases) proposals() {
	m := c.maker
	added := m.KeyPackage(m.InstallationKey(), m.InboxID(), anyTime)
	noSuite := added
	noSuite.CipherSuite = 0x7777
	leaf := added.Leaf
	leaf.Source = SourceUpdate
	twins := Extensions([]Extension{{0xff00, nil}, {0xff00, []byte{1}}})
	for _, p := range []struct {
		name string
		kind uint16
		body []byte
		ok   bool
	}{
		{"add", 1, added.Encode(), true},
		{"add of an unknown suite", 1, noSuite.Encode(), false},
		{"update", 2, leaf.Encode(), true},
		{"remove cut off", 3, []byte{0, 0, 1}, false},
		{"external pre-shared key", 4, slices.Concat([]byte{1}, Vector(m.Bytes(8)), Vector(m.Bytes(32))), true},
		{"resumption pre-shared key", 4, slices.Concat([]byte{2, 1}, Vector(m.Bytes(16)), m.Bytes(8), Vector(nil)), true},
		{"resumption usage 0", 4, slices.Concat([]byte{2, 0}, Vector(m.Bytes(16)), m.Bytes(8), Vector(nil)), false},
		{"resumption usage 4", 4, slices.Concat([]byte{2, 4}, Vector(m.Bytes(16)), m.Bytes(8), Vector(nil)), false},
		{"pre-shared key type 3", 4, slices.Concat([]byte{3}, Vector(nil), Vector(nil)), false},
		{"reinit", 5, slices.Concat(Vector(m.Bytes(16)), []byte{0, 1, 0, Suite}, Extensions(nil)), true},
		{"reinit of an unknown suite", 5, slices.Concat(Vector(m.Bytes(16)), []byte{0, 1, 0x0a, 0x0a}, Extensions(nil)), false},
		{"external init", 6, Vector(m.Bytes(32)), true},
		{"group context extensions", 7, Extensions([]Extension{{0xff00, m.Bytes(9)}, {0xff01, nil}}), true},
		{"repeated group context extension", 7, twins, false},
		{"app data update", 8, slices.Concat([]byte{0x80, 1, 1}, Vector(m.Bytes(5))), true},
		{"app data removal", 8, []byte{0x80, 1, 2}, true},
		{"app data operation 3", 8, []byte{0x80, 1, 3}, false},
		{"app ephemeral", 9, slices.Concat([]byte{0x80, 1}, Vector(m.Bytes(5))), true},
		{"GREASE", 0x0a0a, Vector(m.Bytes(3)), true},
		{"GREASE without body", 0x0a0a, nil, false},
	} {
		message := m.Public(ContentProposal, c.group, c.epoch, 0)
		message.SenderType, message.MembershipTag = SenderExternal, nil
		message.Content = Proposal(p.kind, p.body)
		// A body without its end must not find one in the signature.
		message.Signature = []byte{}
		if name := "26 proposal: " + p.name; p.ok {
			c.accept(name, message.Encode(), true)
		} else {
			c.refuse(name, message.Encode())
		}
	}
}

// commits goes through the parts of a commit in the clear.
func (c *groupCases) commits() {
	m := c.maker
	path := m.UpdatePath()
	remove := InlineProposal(RemoveProposal(1))
	empty := Commit{}.Encode()
	badLeaf := m.leaf(m.InstallationKey())
	badLeaf.Source, badLeaf.Extensions = SourceCommit, []Extension{{ExtensionLastResort, nil}}
	for _, p := range []struct {
		name string
		body []byte
		ok   bool
	}{
		{"empty", empty, true},
		{"path alone", Commit{Path: path}.Encode(), true},
		{"proposals alone", Commit{Proposals: [][]byte{remove, ProposalReference(m.Bytes(32))}}.Encode(), true},
		{"proposal tag 0", Commit{Proposals: [][]byte{{0, 0}}}.Encode(), false},
		{"proposal tag 3", Commit{Proposals: [][]byte{{3, 0}}}.Encode(), false},
		{"presence byte 2", append(empty[:1:1], 2), false},
		{"last proposal overruns the list", append(VectorOfWidth(1, len(remove)-1, remove), 0), false},
		{"path cut off", Commit{Path: path[:len(path)-1]}.Encode(), false},
		{"leaf extension not for leaves", Commit{Path: append(badLeaf.Encode(), 0)}.Encode(), false},
	} {
		message := m.Public(ContentCommit, c.group, c.epoch, 0)
		message.SenderType, message.MembershipTag = SenderNewMemberCommit, nil
		message.Content = p.body
		message.Signature, message.ConfirmationTag = []byte{}, []byte{}
		if name := "24 commit: " + p.name; p.ok {
			c.accept(name, message.Encode(), true)
		} else {
			c.refuse(name, message.Encode())
		}
	}
}
