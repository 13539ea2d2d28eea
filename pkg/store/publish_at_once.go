package store

import (
	"context"
	_ "embed"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

//go:embed sql/publish_at_once.sql
var publishAtOnceSQL string

//go:embed sql/publish_one.sql
var publishOneSQL string

var (
	atOnceStatement = statement{"publish_at_once", publishAtOnceSQL}
	oneStatement    = statement{"publish_one", publishOneSQL}
)

// caution is how many batches go the general way after one that could not be
// stored at once: its rows were written in vain. Envelopes that are stored already
// often come in numbers, when clients repeat what was not answered in time.
const caution = 64

// optimism says whether the next batch is tried at once. It is safe for concurrent
// use.
type optimism struct{ left atomic.Int32 }

func (o *optimism) disappoint() { o.left.Store(caution) }

func (o *optimism) isCalledFor() bool {
	return o.left.Load() <= 0 || o.left.Add(-1) < 0
}

// storeAtOnce stores the drafts of a batch in one statement, which is a
// transaction. It fails with serialization_failure when one of them is stored
// already or another process is at work on the same topics.
func storeAtOnce(ctx context.Context, conn *pgx.Conn, batch *Batch) (Locked, error) {
	var found Locked
	once := atOnceCall(batch)
	once.row = func(values [][]byte) error {
		c := columns{values: values}
		found.ServerNS, found.IDs, found.Heads = c.int64(), c.sequenceIDs(), c.sequenceIDs()
		return c.err
	}
	err := exchange(ctx, conn, []call{once})
	if err == nil && (len(found.IDs) != len(batch.Drafts) || len(found.Heads) != len(batch.Topics)) {
		err = fmt.Errorf("stored %d of %d envelopes on %d of %d topics", len(found.IDs), len(batch.Drafts), len(found.Heads), len(batch.Topics))
	}
	return found, err
}

// atOnceCall is the statement that stores the drafts of a batch. One for a single
// envelope pays: see docs/benchmarks/publisher.md.
func atOnceCall(batch *Batch) call {
	n, drafts := len(batch.Drafts), batch.Drafts
	if n == 1 {
		return call{statement: oneStatement, params: [][]byte{
			[]byte(batch.Topics[0]), drafts[0].Hash[:], bigint(int64(drafts[0].Retention)), boolean(drafts[0].IsCommitOrProposal), drafts[0].Payload,
		}}
	}
	last := make([]int32, len(batch.Topics))
	for i := range drafts {
		last[drafts[i].Topic] = int32(i) + 1 // arrays count from 1
	}
	return call{statement: atOnceStatement, params: [][]byte{
		topicArray(n, batch.topicOf),
		byteaArray(n, func(i int) []byte { return drafts[i].Hash[:] }),
		bigintArray(n, func(i int) int64 { return int64(drafts[i].Retention) }),
		booleanArray(n, func(i int) bool { return drafts[i].IsCommitOrProposal }),
		byteaArray(n, func(i int) []byte { return drafts[i].Payload }),
		topicArray(len(batch.Topics), func(i int) topic.Topic { return batch.Topics[i] }),
		integerArray(len(last), func(i int) int32 { return last[i] }),
	}}
}
