package query

import (
	"context"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
)

// Field numbers of the messages.
const (
	newestTopics = 1
	newestFull   = 2

	newestResults  = 1
	resultTopic    = 1
	resultMeta     = 2
	resultEnvelope = 3
)

// Newest returns the newest envelope of each topic that has one (section 7 of
// the specification), in the order in which the topics were first named.
func (h *Handler) Newest(ctx context.Context, request []byte) (*rpc.Frame, error) {
	asked, err := h.parseNewest(request)
	if err != nil {
		return nil, err
	}
	encode := appendMetaResult
	if asked.Full {
		encode = appendFullResult
	}
	var page store.Page
	err = h.replica.Read(ctx, func(ctx context.Context, pool *store.Pool) (err error) {
		page, err = pool.Newest(ctx, asked, encode)
		return err
	})
	if err != nil {
		return nil, err
	}
	return rpc.FrameOfBuffer(page.Encoded), nil
}

func (h *Handler) parseNewest(request []byte) (store.Newest, error) {
	full, err := wantsFull(request, max(h.limits.MaxNewestMetadataTopics, h.limits.MaxNewestFullTopics))
	if err != nil {
		return store.Newest{}, err
	}
	most := h.limits.MaxNewestMetadataTopics
	if full {
		most = h.limits.MaxNewestFullTopics
	}
	count, err := countTopics(request, newestTopics, most)
	if err != nil {
		return store.Newest{}, err
	}
	list := newTopicList(count)
	m := wire.Read(request)
	for m.Next() {
		if !m.IsBytes(newestTopics) {
			continue
		}
		raw, err := parseTopic(m.Bytes(), nil)
		var name topic.Topic
		if err == nil {
			name, err = topic.Parse(raw)
		}
		if err != nil {
			return store.Newest{}, at("topic", list.read, err)
		}
		list.add(name, 0)
	}
	return store.Newest{Topics: list.topics, Full: full, MaxBytes: int(h.limits.MaxResponseBytes), Buffer: rpc.Buffer}, m.Err()
}

// wantsFull reads the flag, which may come after the topics. It gives up past
// the highest number of topics that is ever allowed.
func wantsFull(request []byte, most uint32) (bool, error) {
	if _, err := countTopics(request, newestTopics, most); err != nil {
		return false, err
	}
	full := false
	m := wire.Read(request)
	for m.Next() {
		if m.IsVarint(newestFull) {
			full = m.Varint() != 0
		}
	}
	return full, m.Err()
}

func appendMetaResult(dst []byte, meta *envelope.Meta, _ []byte) []byte {
	return appendResult(dst, meta, 0)
}

func appendFullResult(dst []byte, meta *envelope.Meta, payload []byte) []byte {
	dst = appendResult(dst, meta, 1+protowire.SizeBytes(len(payload)))
	dst = protowire.AppendTag(dst, resultEnvelope, protowire.BytesType)
	return protowire.AppendBytes(dst, payload)
}

// appendResult begins a result to which the caller appends further bytes.
func appendResult(dst []byte, meta *envelope.Meta, further int) []byte {
	size := 1 + protowire.SizeBytes(envelope.TopicSize(meta.Topic)) + 1 + protowire.SizeBytes(meta.Size()) + further
	dst = protowire.AppendTag(dst, newestResults, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	dst = envelope.AppendTopicField(dst, resultTopic, meta.Topic)
	return envelope.AppendMetaField(dst, resultMeta, meta)
}
