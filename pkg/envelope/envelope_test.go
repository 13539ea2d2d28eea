package envelope_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

func metas(t *rapid.T) envelope.Meta {
	kind := topic.Kind(rapid.IntRange(0, 4).Draw(t, "kind"))
	length := topic.KeyLength
	if kind == topic.GroupMessage || kind == topic.CommitLog {
		length = topic.GroupIDLength
	}
	name, err := topic.New(kind, rapid.SliceOfN(rapid.Byte(), length, length).Draw(t, "identifier"))
	require.NoError(t, err)
	return envelope.Meta{
		Topic:              name,
		SequenceID:         topic.SequenceID(rapid.Int64Range(0, math.MaxInt64).Draw(t, "sequence id")),
		ServerNS:           rapid.Int64Range(0, math.MaxInt64).Draw(t, "server ns"),
		ExpiryNS:           rapid.Int64Range(0, math.MaxInt64).Draw(t, "expiry ns"),
		MessageHash:        envelope.MessageHash(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash")),
		IsCommitOrProposal: rapid.Bool().Draw(t, "commit"),
	}
}

func wireMeta(m envelope.Meta) *backendv1.EnvelopeMeta {
	return &backendv1.EnvelopeMeta{
		Cursor:             &backendv1.Cursor{SequenceId: uint64(m.SequenceID)},
		ServerNs:           uint64(m.ServerNS),
		MessageHash:        &backendv1.MessageHash{Hash: &backendv1.MessageHash_Sha256{Sha256: m.MessageHash[:]}},
		Topic:              &backendv1.Topic{Topic: []byte(m.Topic)},
		ExpiryNs:           uint64(m.ExpiryNS),
		IsCommitOrProposal: m.IsCommitOrProposal,
	}
}

// The spliced bytes are those of the protobuf library, byte for byte, so that a
// client cannot tell which of the two wrote them.
//
// Proves API-023, API-164.
func TestSplicedBytesEqualMarshalledOnes(t *testing.T) {
	deterministic := proto.MarshalOptions{Deterministic: true}
	rapid.Check(t, func(t *rapid.T) {
		meta := metas(t)
		client := &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_GroupMessage{GroupMessage: &backendv1.GroupMessage{
			Data: rapid.SliceOf(rapid.Byte()).Draw(t, "data"),
		}}}
		payload, err := deterministic.Marshal(client)
		require.NoError(t, err)
		server := &backendv1.ServerEnvelope{Meta: wireMeta(meta), Envelope: client}

		want, err := deterministic.Marshal(wireMeta(meta))
		require.NoError(t, err)
		require.Equal(t, want, envelope.AppendMeta(nil, &meta))
		require.Len(t, want, meta.Size())

		want, err = deterministic.Marshal(server)
		require.NoError(t, err)
		require.Equal(t, want, envelope.AppendServer(nil, &meta, payload))
		require.Len(t, want, envelope.ServerSize(&meta, payload))

		want, err = deterministic.Marshal(&backendv1.QueryResponse{Envelopes: []*backendv1.ServerEnvelope{server, server}})
		require.NoError(t, err)
		got := envelope.AppendServerField(nil, 1, &meta, payload)
		require.Equal(t, want, envelope.AppendServerField(got, 1, &meta, payload))

		want, err = deterministic.Marshal(&backendv1.PublishResponse{EnvelopeMetas: []*backendv1.EnvelopeMeta{wireMeta(meta)}})
		require.NoError(t, err)
		require.Equal(t, want, envelope.AppendMetaField(nil, 1, &meta))
	})
}

func TestTheConfiguredOverheadCoversTheLargestMetadata(t *testing.T) {
	name, err := topic.New(topic.KeyPackage, make([]byte, topic.KeyLength))
	require.NoError(t, err)
	meta := envelope.Meta{Topic: name, SequenceID: math.MaxInt64, ServerNS: math.MaxInt64, ExpiryNS: math.MaxInt64, IsCommitOrProposal: true}
	payload := make([]byte, 1<<20)
	require.Less(t, len(envelope.AppendServerField(nil, 1, &meta, payload)), len(payload)+256)
}

func BenchmarkAppendServer(b *testing.B) {
	name, _ := topic.New(topic.GroupMessage, make([]byte, topic.GroupIDLength))
	meta := envelope.Meta{Topic: name, SequenceID: 123456, ServerNS: 1_795_966_296_133_411_945, ExpiryNS: 1_803_742_296_133_411_945}
	payload := make([]byte, 1024)
	buffer := make([]byte, 0, 2048)
	b.ReportAllocs()
	for b.Loop() {
		buffer = envelope.AppendServer(buffer[:0], &meta, payload)
	}
}
