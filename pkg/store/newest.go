package store

import (
	"context"
	_ "embed"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

var (
	//go:embed sql/newest_meta.sql
	newestMetaSQL string
	//go:embed sql/newest_full.sql
	newestFullSQL string

	newestMetaStatement = statement{"the newest metadata of topics", newestMetaSQL}
	newestFullStatement = statement{"the newest envelopes of topics", newestFullSQL}
)

// Newest asks for the newest envelope of each of some topics.
type Newest struct {
	// Topics are distinct. The answer follows their order and leaves out those
	// without an envelope.
	Topics []topic.Topic
	// Full asks for payloads, too; else none is read.
	Full bool
	// MaxBytes is the most that the encoded answer may take.
	MaxBytes int
}

// Newest reads from one snapshot. An answer longer than MaxBytes is TooLong, and one
// longer than room is only measured.
func (p *Pool) Newest(ctx context.Context, q Newest, room int, sheet Sheet) (Page, error) {
	if len(q.Topics) == 0 {
		return Page{}, nil
	}
	room = min(room, q.MaxBytes)
	s := newestMetaStatement
	params := [][]byte{topicArray(len(q.Topics), func(i int) topic.Topic { return q.Topics[i] })}
	if q.Full {
		s = newestFullStatement
		params = append(params, bigint(int64(room)))
	}
	b := pageBuilder{topics: q.Topics, limit: len(q.Topics), max: q.MaxBytes, room: room, sheet: sheet, full: q.Full}
	err := p.read(ctx, s, params, b.reset, b.add)
	return b.end(), err
}
