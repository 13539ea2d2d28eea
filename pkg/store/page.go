package store

import (
	"context"
	_ "embed"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

//go:embed sql/page.sql
var pageSQL string

var pageStatement = statement{"a page of history", pageSQL}

// PageRequest asks for the rows of one topic above a cursor.
type PageRequest struct {
	Topic topic.Topic
	// After is the cursor: rows are strictly above it.
	After topic.SequenceID
	// MaxRows is the most rows of this topic, at least 1.
	MaxRows int
}

// PageRow is one stored envelope, ready to be sent.
type PageRow struct {
	// Request is the index of the request that it answers.
	Request    int
	Topic      topic.Topic
	SequenceID topic.SequenceID
	// ServerNS is the start of the storing transaction in Unix nanoseconds.
	ServerNS int64
	// Encoded is the wire form of the ServerEnvelope. It owns its memory.
	Encoded []byte
}

// ReadPage reads rows of many topics in one snapshot: in the order of
// requests, ascending within each. It takes turns over the topics, a row each,
// until the payloads taken pass maxBytes, so a page holds at least one row if
// there is any, and at most maxBytes and one envelope. cut says that the bytes,
// not MaxRows, left rows out.
func (p *InstancePool) ReadPage(ctx context.Context, requests []PageRequest, maxBytes int) (rows []PageRow, cut bool, err error) {
	if len(requests) == 0 {
		return nil, false, nil
	}
	params := [][]byte{
		topicArray(len(requests), func(i int) topic.Topic { return requests[i].Topic }),
		bigintArray(len(requests), func(i int) int64 { return int64(requests[i].After) }),
		integerArray(len(requests), func(i int) int32 { return int32(max(1, requests[i].MaxRows)) }),
		bigint(int64(max(1, maxBytes))),
	}
	found := int64(0)
	err = p.onInstance(ctx, func() error {
		return p.read(ctx, pageStatement, params, func() { rows, found = nil, 0 }, func(values [][]byte) error {
			c := columns{values: values}
			n := int(c.int64()) - 1 // WITH ORDINALITY counts from 1
			meta, payload := c.stored(requests[n].Topic)
			found = c.int64()
			if c.err != nil {
				return c.err
			}
			encoded := make([]byte, 0, envelope.ServerSize(&meta, payload))
			rows = append(rows, PageRow{
				Request:    n,
				Topic:      meta.Topic,
				SequenceID: meta.SequenceID,
				ServerNS:   meta.ServerNS,
				Encoded:    envelope.AppendServer(encoded, &meta, payload),
			})
			return nil
		})
	})
	if err != nil {
		return nil, false, err
	}
	return rows, found > int64(len(rows)), nil
}

// stored reads the columns of an envelope: sequence id, server time, expiry,
// hash, flag, payload. The payload is valid as long as the row.
func (c *columns) stored(name topic.Topic) (meta envelope.Meta, payload []byte) {
	meta = c.meta(name)
	return meta, c.bytes()
}

func (c *columns) meta(name topic.Topic) envelope.Meta {
	return envelope.Meta{
		Topic:              name,
		SequenceID:         topic.SequenceID(c.int64()),
		ServerNS:           c.int64(),
		ExpiryNS:           c.int64(),
		MessageHash:        envelope.MessageHash(c.next(len(envelope.MessageHash{}))),
		IsCommitOrProposal: c.bool(),
	}
}
