package testkit

import (
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Broken is an envelope that must be refused, and why.
type Broken struct {
	Name     string
	Envelope *backendv1.ClientEnvelope
	Reason   fault.Reason
}

// Broken returns one envelope or more for every reason that a content can be
// refused for; TooLarge depends on the configured limit and is not among them.
func (k *Kit) Broken(at time.Time) []Broken {
	client := k.Client()
	truncated := k.GroupMessage(k.Group(), 64)
	message := truncated.GetGroupMessage()
	message.Data = message.Data[:len(message.Data)-1]

	expired := client.KeyPackage(at.Add(-365 * 24 * time.Hour))
	tampered := client.KeyPackage(at)
	encoded := tampered.GetKeyPackage().GetKeyPackageTlsSerialized()
	encoded[len(encoded)-1] ^= 1

	uncreated, _ := k.Client().AddInstallation(at)
	stranger := associationtest.NewWallet("stranger")
	strangers := Identity(associationtest.NewUpdate(client.InboxID, uint64(at.UnixNano())).
		CreateAs(stranger, client.Wallet.Text(), client.Wallet.Kind(), 1).Update())

	forged := client.Registration(at)
	add := forged.GetIdentityUpdate().GetActions()[1].GetAdd()
	add.GetNewMemberSignature().GetInstallationKey().GetBytes()[0] ^= 1

	return []Broken{
		{"no payload", &backendv1.ClientEnvelope{}, fault.MalformedPayload},
		{"truncated group message", truncated, fault.MalformedPayload},
		{"welcome to a key of 31 bytes", k.Welcome(make([]byte, 31), 10), fault.MalformedPayload},
		{"key package with a byte too many", KeyPackage(append(client.KeyPackage(at).GetKeyPackage().GetKeyPackageTlsSerialized(), 0)), fault.MalformedPayload},
		{"commit-log entry without a group", &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_CommitLogEntry{
			CommitLogEntry: &backendv1.CommitLogEntry{}}}, fault.MalformedPayload},
		{"expired key package", expired, fault.InvalidKeyPackage},
		{"tampered key package", tampered, fault.InvalidKeyPackage},
		{"update of an inbox that does not exist", uncreated, fault.InvalidIdentityUpdate},
		{"creation signed by a stranger", strangers, fault.InvalidIdentityUpdate},
		{"forged installation signature", forged, fault.InvalidSignature},
	}
}
