package store

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

//go:embed sql/heads.sql
var headsSQL string

var headsStatement = statement{"heads of topics", headsSQL}

// Heads returns the visible head of each topic, in one snapshot and in the
// order of topics; 0 for a topic without an envelope.
func (p *InstancePool) Heads(ctx context.Context, topics []topic.Topic) ([]topic.SequenceID, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	var heads []topic.SequenceID
	params := [][]byte{topicArray(len(topics), func(i int) topic.Topic { return topics[i] })}
	err := p.onInstance(ctx, func() error {
		return p.read(ctx, headsStatement, params, func() { heads = nil }, func(values [][]byte) (err error) {
			heads, err = parseHeads(values[0], len(topics))
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return heads, nil
}

var errHeads = errors.New("the heads of topics came back in an unexpected form")

// parseHeads reads a bigint[] of n elements without nulls.
func parseHeads(array []byte, n int) ([]topic.SequenceID, error) {
	if len(array) != arrayHeader+n*12 {
		return nil, errHeads
	}
	heads := make([]topic.SequenceID, n)
	for i := range heads {
		heads[i] = topic.SequenceID(binary.BigEndian.Uint64(array[arrayHeader+i*12+4:]))
	}
	return heads, nil
}
