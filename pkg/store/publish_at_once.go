package store

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

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

// StatementOfOne is the statement that stores a publish of one new envelope, and
// the settings of the sessions that run it, for benchmarks that compare with it.
// Its parameters are topic, message hash, retention in nanoseconds, whether it is a
// commit or proposal, and payload.
func StatementOfOne() (sql string, settings map[string]string) {
	return publishOneSQL, maps.Clone(publisherSettings)
}

// Draft is an envelope that is to be stored unless it is already.
type Draft struct {
	Payload            []byte
	IsCommitOrProposal bool
	// Retention is from the start of the transaction to the expiry; 0 is for ever.
	Retention time.Duration
}

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
func storeAtOnce(ctx context.Context, conn *pgx.Conn, batch Batch) (Locked, error) {
	found := Locked{Committed: true}
	once, err := atOnceCall(batch)
	if err != nil {
		return found, err
	}
	once.row = func(values [][]byte) error {
		c := columns{values: values}
		found.ServerNS, found.IDs, found.Heads = c.int64(), c.sequenceIDs(), c.sequenceIDs()
		return c.err
	}
	err = exchange(ctx, conn, []call{once})
	if err == nil && (len(found.IDs) != len(batch.Keys) || len(found.Heads) != len(batch.Topics)) {
		err = fmt.Errorf("stored %d of %d envelopes on %d of %d topics", len(found.IDs), len(batch.Keys), len(found.Heads), len(batch.Topics))
	}
	return found, err
}

// atOnceCall is the statement that stores the drafts of a batch.
func atOnceCall(batch Batch) (call, error) {
	n := len(batch.Keys)
	if n == 1 {
		key, draft := &batch.Keys[0], &batch.Drafts[0]
		return call{statement: oneStatement, params: [][]byte{
			[]byte(key.Topic), key.Hash[:], bigint(int64(draft.Retention)), boolean(draft.IsCommitOrProposal), draft.Payload,
		}}, nil
	}
	last := make([]int32, len(batch.Topics))
	for i := range batch.Keys {
		at, ok := slices.BinarySearch(batch.Topics, batch.Keys[i].Topic)
		if !ok {
			return call{}, fmt.Errorf("envelope %d is not on a topic of its batch", i)
		}
		last[at] = int32(i) + 1 // arrays count from 1
	}
	return call{statement: atOnceStatement, params: [][]byte{
		topicArray(n, func(i int) topic.Topic { return batch.Keys[i].Topic }),
		byteaArray(n, func(i int) []byte { return batch.Keys[i].Hash[:] }),
		bigintArray(n, func(i int) int64 { return int64(batch.Drafts[i].Retention) }),
		booleanArray(n, func(i int) bool { return batch.Drafts[i].IsCommitOrProposal }),
		byteaArray(n, func(i int) []byte { return batch.Drafts[i].Payload }),
		topicArray(len(batch.Topics), func(i int) topic.Topic { return batch.Topics[i] }),
		integerArray(len(last), func(i int) int32 { return last[i] }),
	}}, nil
}
