package testkit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/payload"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// validate runs what a publisher runs on an envelope of an empty backend.
func validate(t *testing.T, e *backendv1.ClientEnvelope) (*payload.Payload, error) {
	t.Helper()
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	require.NoError(t, err)
	parsed, err := payload.Parse(raw, 1<<20)
	if err != nil {
		return nil, err
	}
	switch parsed.Topic.Kind() {
	case topic.KeyPackage:
		return parsed, parsed.KeyPackage.Validate(now)
	case topic.IdentityUpdate:
		update, err := parsed.IdentityUpdate()
		require.NoError(t, err)
		prepared, err := association.Prepare(update)
		if err != nil {
			return nil, err
		}
		verified, err := prepared.Verify(t.Context(), associationtest.AcceptAll{})
		if err != nil {
			return nil, err
		}
		empty, err := association.Replay(nil)
		require.NoError(t, err)
		_, err = empty.Apply(verified)
		return parsed, err
	}
	return parsed, nil
}

// Proves API-002.
func TestEveryKindIsValidAndOnItsTopic(t *testing.T) {
	kit := testkit.New(1)
	group, client := kit.Group(), kit.Client()
	for name, c := range map[string]struct {
		envelope *backendv1.ClientEnvelope
		topic    topic.Topic
		commit   bool
	}{
		"message":         {kit.GroupMessage(group, 1024), group.Topic(), false},
		"commit":          {kit.Commit(group, 3), group.Topic(), true},
		"proposal":        {kit.Proposal(group, 3), group.Topic(), true},
		"welcome":         {kit.Welcome(client.Installation.PublicKey(), 512), client.WelcomeTopic(), false},
		"welcome pointer": {kit.WelcomePointer(client.Installation.PublicKey()), client.WelcomeTopic(), false},
		"registration":    {client.Registration(now), client.Topic(), false},
		"key package":     {client.KeyPackage(now), client.KeyPackageTopic(), false},
		"commit log":      {kit.CommitLogEntry(group, 7, 3), group.CommitLogTopic(), false},
	} {
		parsed, err := validate(t, c.envelope)
		require.NoError(t, err, name)
		require.Equal(t, c.topic, parsed.Topic, name)
		require.Equal(t, c.commit, parsed.IsCommitOrProposal, name)
	}
}

func TestBrokenEnvelopesAreRefusedForTheirReason(t *testing.T) {
	for _, broken := range testkit.New(2).Broken(now) {
		_, err := validate(t, broken.Envelope)
		require.Error(t, err, broken.Name)
		require.Equal(t, fault.Invalid, fault.KindOf(err), broken.Name)
		require.Equal(t, broken.Reason, fault.Of(err).Reason, broken.Name)
	}
}

func TestTheSameSeedGivesTheSameEnvelopes(t *testing.T) {
	one, two, other := testkit.New(5), testkit.New(5), testkit.New(6)
	a, b, c := one.GroupMessage(one.Group(), 99), two.GroupMessage(two.Group(), 99), other.GroupMessage(other.Group(), 99)
	require.True(t, proto.Equal(a, b))
	require.False(t, proto.Equal(a, c))
	require.True(t, proto.Equal(one.Client().Registration(now), two.Client().Registration(now)))
	require.NotEqual(t, one.Client().InboxID, other.Client().InboxID)
}
