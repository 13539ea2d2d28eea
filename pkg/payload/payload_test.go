package payload_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/payload"
	"github.com/xmtp-selfhosted/backend/pkg/recording"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

const maxBytes = 1 << 20

func load(t testing.TB) []recording.Payload {
	session, err := recording.Load()
	require.NoError(t, err)
	return session.Payloads
}

func marshal(t testing.TB, e *backendv1.ClientEnvelope) []byte {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	require.NoError(t, err)
	return raw
}

// What clients send is canonical already: stored bytes are the sent ones.
//
// Proves API-001, I7.
func TestRecordedPayloadsParseToTheirTopicsAndBytes(t *testing.T) {
	for _, p := range load(t) {
		raw := marshal(t, p.Envelope)
		parsed, err := payload.Parse(raw, maxBytes)
		require.NoError(t, err, p.ID)
		require.Equal(t, p.Topic, parsed.Topic, p.ID)
		require.Equal(t, raw, parsed.Canonical, p.ID)
		require.Equal(t, envelope.HashOf(raw), parsed.Hash, p.ID)
		require.Equal(t, p.IsCommitOrProposal, parsed.IsCommitOrProposal, p.ID)
		require.Equal(t, p.Topic.Kind() == topic.KeyPackage, parsed.KeyPackage != nil, p.ID)
		if p.Topic.Kind() == topic.IdentityUpdate {
			update, err := parsed.IdentityUpdate()
			require.NoError(t, err)
			require.True(t, proto.Equal(p.Envelope.GetIdentityUpdate(), update), p.ID)
		}
	}
}

// Two requests that decode to the same message hash the same (API-020).
//
// Proves API-020.
func TestFramingDoesNotChangeTheHash(t *testing.T) {
	message := groupMessage(t)
	canonical := marshal(t, message)
	inner := marshalInner(t, message.GetGroupMessage())
	longLength := append([]byte{0x0a}, protowire.AppendVarint(nil, uint64(len(inner)))...)
	longLength[len(longLength)-1] |= 0x80 // the same length in one byte more than it needs
	longLength = append(append(longLength, 0), inner...)
	unknownOuter := protowire.AppendBytes(protowire.AppendTag(bytes.Clone(canonical), 99, protowire.BytesType), []byte("unknown"))
	withUnknown := append(bytes.Clone(inner), 0xa0, 0x06, 0x01)
	unknownInner := protowire.AppendBytes([]byte{0x0a}, withUnknown)
	explicitDefault := protowire.AppendBytes([]byte{0x0a}, append(bytes.Clone(inner), 0x18, 0x00))
	for name, raw := range map[string][]byte{
		"canonical": canonical, "long length prefix": longLength, "unknown field outside": unknownOuter,
		"unknown field inside": unknownInner, "explicit default": explicitDefault,
	} {
		parsed, err := payload.Parse(raw, maxBytes)
		require.NoError(t, err, name)
		require.True(t, bytes.Equal(canonical, parsed.Canonical), name)
		require.Equal(t, envelope.HashOf(canonical), parsed.Hash, name)
	}
}

func groupMessage(t testing.TB) *backendv1.ClientEnvelope {
	for _, p := range load(t) {
		if p.Envelope.GetGroupMessage() != nil && !p.Envelope.GetGroupMessage().GetShouldPush() {
			return p.Envelope
		}
	}
	t.Fatal("the recording holds no group message")
	return nil
}

func marshalInner(t testing.TB, m proto.Message) []byte {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return raw
}

// Proves API-040, API-045, API-046.
func TestEveryKindOfBadPayloadIsMalformed(t *testing.T) {
	key := bytes.Repeat([]byte{1}, 32)
	welcome := func(k []byte) *backendv1.ClientEnvelope {
		return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_WelcomeMessage{WelcomeMessage: &backendv1.WelcomeMessage{
			Version: &backendv1.WelcomeMessage_V1_{V1: &backendv1.WelcomeMessage_V1{InstallationKey: k}}}}}
	}
	pointer := func(k []byte) *backendv1.ClientEnvelope {
		return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_WelcomeMessage{WelcomeMessage: &backendv1.WelcomeMessage{
			Version: &backendv1.WelcomeMessage_WelcomePointer_{WelcomePointer: &backendv1.WelcomeMessage_WelcomePointer{InstallationKey: k}}}}}
	}
	update := func(inbox string) *backendv1.ClientEnvelope {
		return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_IdentityUpdate{
			IdentityUpdate: &associations.IdentityUpdate{InboxId: inbox}}}
	}
	entry := func(raw []byte) *backendv1.ClientEnvelope {
		return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_CommitLogEntry{
			CommitLogEntry: &backendv1.CommitLogEntry{SerializedCommitLogEntry: raw}}}
	}
	inbox := hex.EncodeToString(key)
	cases := map[string]struct {
		raw  []byte
		good bool
	}{
		"nothing":                       {nil, false},
		"not protobuf":                  {[]byte{0xff, 0xff}, false},
		"29 group message without data": {marshal(t, &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_GroupMessage{GroupMessage: &backendv1.GroupMessage{}}}), false},
		"welcome without version":       {[]byte{0x12, 0x00}, false},
		"116 welcome, 31 bytes":         {marshal(t, welcome(key[:31])), false},
		"116 welcome, 32 bytes":         {marshal(t, welcome(key)), true},
		"116 welcome, 33 bytes":         {marshal(t, welcome(append(bytes.Clone(key), 1))), false},
		"117 pointer, 32 bytes":         {marshal(t, pointer(key)), true},
		"117 pointer, 31 bytes":         {marshal(t, pointer(key[:31])), false},
		"key package, empty":            {[]byte{0x1a, 0x00}, false},
		"107 inbox id":                  {marshal(t, update(inbox)), true},
		"107 upper-case inbox id":       {marshal(t, update(strings.ToUpper(strings.Repeat("ab", 32)))), true},
		"107 inbox id with 0x":          {marshal(t, update("0x"+inbox)), false},
		"107 inbox id, 63 digits":       {marshal(t, update(inbox[:63])), false},
		"107 inbox id, 66 digits":       {marshal(t, update(inbox+"00")), false},
		"inbox id that is not UTF-8":    {append([]byte{0x22, 66, 0x1a, 64}, bytes.Repeat([]byte{0xff}, 64)...), false},
		"118 commit log, empty":         {marshal(t, entry(nil)), false},
		"118 commit log, group id only": {marshal(t, entry(append([]byte{0x0a, 16}, key[:16]...))), true},
		"118 commit log, 15 bytes":      {marshal(t, entry(append([]byte{0x0a, 15}, key[:15]...))), false},
		"118 commit log, 17 bytes":      {marshal(t, entry(append([]byte{0x0a, 17}, key[:17]...))), false},
		"120 commit log, result 99":     {marshal(t, entry(append(append([]byte{0x0a, 16}, key[:16]...), 0x20, 99))), true},
		"commit log, not protobuf":      {marshal(t, entry([]byte{0xff})), false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := payload.Parse(c.raw, maxBytes)
			if c.good {
				require.NoError(t, err)
				return
			}
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			require.Equal(t, fault.MalformedPayload, fault.Of(err).Reason)
		})
	}
}

func TestSizeIsMeasuredOnTheCanonicalBytes(t *testing.T) {
	canonical := marshal(t, groupMessage(t))
	_, err := payload.Parse(canonical, len(canonical))
	require.NoError(t, err)
	_, err = payload.Parse(canonical, len(canonical)-1)
	require.Equal(t, fault.TooLarge, fault.Of(err).Reason)

	padded := protowire.AppendBytes(protowire.AppendTag(bytes.Clone(canonical), 99, protowire.BytesType), make([]byte, 1000))
	_, err = payload.Parse(padded, len(canonical))
	require.NoError(t, err, "unknown fields are dropped before the size is measured")
	_, err = payload.Parse(padded, len(canonical)-1)
	require.Equal(t, fault.TooLarge, fault.Of(err).Reason)
	_, err = payload.Parse(canonical, math.MaxInt)
	require.NoError(t, err)
}

func FuzzParse(f *testing.F) {
	for _, p := range load(f) {
		f.Add(marshal(f, p.Envelope))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		parsed, err := payload.Parse(raw, maxBytes)
		if err != nil {
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			return
		}
		// The shortcut and the general way agree, and canonical is a fixed point.
		var decoded backendv1.ClientEnvelope
		require.NoError(t, proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw, &decoded))
		require.Equal(t, marshal(t, &decoded), parsed.Canonical)
		again, err := payload.Parse(parsed.Canonical, maxBytes)
		require.NoError(t, err)
		require.Equal(t, parsed.Hash, again.Hash)
		require.Equal(t, parsed.Topic, again.Topic)
	})
}

func BenchmarkParseGroupMessage(b *testing.B) {
	raw := marshal(b, groupMessage(b))
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := payload.Parse(raw, maxBytes); err != nil {
			b.Fatal(err)
		}
	}
}
