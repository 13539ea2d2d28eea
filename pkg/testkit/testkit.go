// Package testkit makes the envelopes that clients publish, of all five kinds,
// valid and broken, from a seed: for tests, the command-line client and the load
// generator. Its keys protect nothing.
package testkit

import (
	"encoding/hex"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/mls/mlstest"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/mls/message_contents"
)

// Kit makes envelopes. The same seed and the same calls give the same
// envelopes. It is for one goroutine.
type Kit struct {
	seed  uint64
	made  int
	maker *mlstest.Maker
}

// New returns a kit whose envelopes depend on seed alone.
func New(seed uint64) *Kit { return &Kit{seed: seed, maker: mlstest.New(seed)} }

// Group is a group id.
type Group [topic.GroupIDLength]byte

// Group returns a new group.
func (k *Kit) Group() Group { return k.maker.GroupID() }

// Topic is the group's message topic.
func (g Group) Topic() topic.Topic { return mustTopic(topic.GroupMessage, g[:]) }

// CommitLogTopic is the group's commit-log topic.
func (g Group) CommitLogTopic() topic.Topic { return mustTopic(topic.CommitLog, g[:]) }

// GroupMessage returns an application message with a ciphertext of size bytes.
func (k *Kit) GroupMessage(group Group, size int) *backendv1.ClientEnvelope {
	return k.group(k.maker.ApplicationMessage(group, 1, size), true)
}

// Commit returns a commit as large as one of a small group.
func (k *Kit) Commit(group Group, epoch uint64) *backendv1.ClientEnvelope {
	return k.group(k.maker.CommitMessage(group, epoch), false)
}

// Proposal returns a proposal.
func (k *Kit) Proposal(group Group, epoch uint64) *backendv1.ClientEnvelope {
	return k.group(k.maker.ProposalMessage(group, epoch), false)
}

func (k *Kit) group(data []byte, push bool) *backendv1.ClientEnvelope {
	return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_GroupMessage{GroupMessage: &backendv1.GroupMessage{
		Data: data, SenderHmac: k.maker.Bytes(32), ShouldPush: push,
	}}}
}

// Welcome returns a welcome to an installation key, with size bytes of data.
func (k *Kit) Welcome(installationKey []byte, size int) *backendv1.ClientEnvelope {
	return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_WelcomeMessage{WelcomeMessage: &backendv1.WelcomeMessage{
		Version: &backendv1.WelcomeMessage_V1_{V1: &backendv1.WelcomeMessage_V1{
			InstallationKey: installationKey, Data: k.maker.Bytes(size), HpkePublicKey: k.maker.Bytes(32),
			WrapperAlgorithm: message_contents.WelcomeWrapperAlgorithm_WELCOME_WRAPPER_ALGORITHM_CURVE25519,
			WelcomeMetadata:  k.maker.Bytes(18),
		}},
	}}}
}

// WelcomePointer returns a pointer, for an installation, to a welcome stored
// under another key.
func (k *Kit) WelcomePointer(installationKey []byte) *backendv1.ClientEnvelope {
	return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_WelcomeMessage{WelcomeMessage: &backendv1.WelcomeMessage{
		Version: &backendv1.WelcomeMessage_WelcomePointer_{WelcomePointer: &backendv1.WelcomeMessage_WelcomePointer{
			InstallationKey: installationKey, WelcomePointer: k.maker.Bytes(1120), HpkePublicKey: k.maker.Bytes(32),
		}},
	}}}
}

// CommitLogEntry returns an entry that says a commit was applied.
func (k *Kit) CommitLogEntry(group Group, commit topic.SequenceID, epoch uint64) *backendv1.ClientEnvelope {
	entry, err := proto.MarshalOptions{Deterministic: true}.Marshal(&message_contents.PlaintextCommitLogEntry{
		GroupId: group[:], CommitSequenceId: uint64(commit), CommitResult: message_contents.CommitResult_COMMIT_RESULT_APPLIED,
		LastEpochAuthenticator: k.maker.Bytes(32), AppliedEpochNumber: epoch, AppliedEpochAuthenticator: k.maker.Bytes(32),
	})
	if err != nil {
		panic(fmt.Sprintf("encode a commit-log entry: %v", err)) // a message of bytes and numbers always encodes
	}
	return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_CommitLogEntry{CommitLogEntry: &backendv1.CommitLogEntry{
		SerializedCommitLogEntry: entry,
		Signature:                &associations.RecoverableEd25519Signature{Bytes: k.maker.Bytes(64), PublicKey: k.maker.Bytes(32)},
	}}}
}

// Client is an inbox with a wallet and one installation.
type Client struct {
	kit          *Kit
	Wallet       *associationtest.Wallet
	Installation *associationtest.Installation
	// InboxID is 64 lower-case hex digits.
	InboxID string
}

// Client returns a client that is not registered yet.
func (k *Kit) Client() *Client {
	k.made++
	name := fmt.Sprintf("testkit %d client %d", k.seed, k.made)
	wallet := associationtest.NewWallet(name)
	return &Client{
		kit: k, Wallet: wallet, Installation: associationtest.NewInstallation(name),
		InboxID: associationtest.InboxID(wallet, 1),
	}
}

// Topic is the identity topic of the client's inbox.
func (c *Client) Topic() topic.Topic {
	inbox, err := hex.DecodeString(c.InboxID)
	if err != nil {
		panic(fmt.Sprintf("inbox id: %v", err)) // it is made as hex
	}
	return mustTopic(topic.IdentityUpdate, inbox)
}

// WelcomeTopic is where welcomes to the client's installation are stored.
func (c *Client) WelcomeTopic() topic.Topic {
	return mustTopic(topic.Welcome, c.Installation.PublicKey())
}

// KeyPackageTopic is where the installation's key packages are stored.
func (c *Client) KeyPackageTopic() topic.Topic {
	return mustTopic(topic.KeyPackage, c.Installation.PublicKey())
}

// Registration returns the first update of the inbox: the wallet creates it and
// adds the installation.
func (c *Client) Registration(at time.Time) *backendv1.ClientEnvelope {
	return Identity(associationtest.Register(c.Wallet, 1, c.Installation, uint64(at.UnixNano())))
}

// AddInstallation returns an update that adds a further installation, and that
// installation.
func (c *Client) AddInstallation(at time.Time) (*backendv1.ClientEnvelope, *associationtest.Installation) {
	c.kit.made++
	added := associationtest.NewInstallation(fmt.Sprintf("testkit %d installation %d", c.kit.seed, c.kit.made))
	return Identity(associationtest.NewUpdate(c.InboxID, uint64(at.UnixNano())).Add(c.Wallet, added).Update()), added
}

// KeyPackage returns a key package of the installation, made at a moment.
func (c *Client) KeyPackage(at time.Time) *backendv1.ClientEnvelope {
	return KeyPackage(c.kit.maker.SignedKeyPackage(c.Installation.Key, c.InboxID, at))
}

// Identity wraps an identity update.
func Identity(update *associations.IdentityUpdate) *backendv1.ClientEnvelope {
	return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_IdentityUpdate{IdentityUpdate: update}}
}

// KeyPackage wraps an encoded key package.
func KeyPackage(encoded []byte) *backendv1.ClientEnvelope {
	return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_KeyPackage{
		KeyPackage: &backendv1.KeyPackage{KeyPackageTlsSerialized: encoded}}}
}

func mustTopic(kind topic.Kind, identifier []byte) topic.Topic {
	name, err := topic.New(kind, identifier)
	if err != nil {
		panic(fmt.Sprintf("make a topic: %v", err)) // identifiers here have their lengths by type
	}
	return name
}
