package store

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

//go:embed sql/publish_identity_lock.sql
var publishIdentityLockSQL string

//go:embed sql/publish_lock_topics.sql
var publishLockTopicsSQL string

//go:embed sql/publish_heads.sql
var publishHeadsSQL string

//go:embed sql/publish_stored.sql
var publishStoredSQL string

//go:embed sql/publish_begin.sql
var publishBeginSQL string

//go:embed sql/publish_rows.sql
var publishRowsSQL string

//go:embed sql/publish_move_heads.sql
var publishMoveHeadsSQL string

//go:embed sql/publish_associate.sql
var publishAssociateSQL string

//go:embed sql/publish_revoke.sql
var publishRevokeSQL string

// The statements of a publish. They are prepared on each connection once.
var (
	beginStatement        = statement{"publish_start", "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"}
	commitStatement       = statement{"publish_commit", "COMMIT"}
	settingStatement      = statement{"publish_setting", "SELECT set_config($1::text, $2::text, true)"}
	identityLockStatement = statement{"publish_identity_lock", publishIdentityLockSQL}
	lockTopicsStatement   = statement{"publish_lock_topics", publishLockTopicsSQL}
	lockedHeads           = statement{"publish_heads", publishHeadsSQL}
	storedStatement       = statement{"publish_stored", publishStoredSQL}
	idsStatement          = statement{"publish_begin", publishBeginSQL}
	rowsStatement         = statement{"publish_rows", publishRowsSQL}
	moveHeadsStatement    = statement{"publish_move_heads", publishMoveHeadsSQL}
	associateStatement    = statement{"publish_associate", publishAssociateSQL}
	revokeStatement       = statement{"publish_revoke", publishRevokeSQL}
)

// lockTopics begins the transaction, takes its locks and reads what they
// protect, all in one round trip.
func lockTopics(ctx context.Context, conn *pgx.Conn, batch *Batch) (Locked, error) {
	found := Locked{Heads: make([]topic.SequenceID, 0, len(batch.Topics))}
	names := topicArray(len(batch.Topics), func(i int) topic.Topic { return batch.Topics[i] })
	calls := make([]call, 0, 8)
	calls = append(calls, call{statement: beginStatement})
	if batch.LockTimeout > 0 {
		calls = append(calls, setting("lock_timeout", batch.LockTimeout))
	}
	if batch.StatementTimeout > 0 {
		calls = append(calls, setting("statement_timeout", batch.StatementTimeout))
	}
	if batch.Identity {
		calls = append(calls, call{statement: identityLockStatement})
	}
	calls = append(calls,
		call{statement: lockTopicsStatement, params: [][]byte{names}},
		call{statement: lockedHeads, params: [][]byte{names}, row: func(values [][]byte) error {
			c := columns{values: values}
			found.Heads = append(found.Heads, topic.SequenceID(c.int64()))
			return c.err
		}},
		storedCall(len(batch.Drafts), batch.topicOf, func(i int) *envelope.MessageHash { return &batch.Drafts[i].Hash }, &found.Stored),
		call{statement: idsStatement, params: [][]byte{integer(int32(len(batch.Drafts)))}, row: found.readBegin},
	)
	if err := exchange(ctx, conn, calls); err != nil {
		return found, err
	}
	if len(found.Heads) != len(batch.Topics) || len(found.IDs) != len(batch.Drafts) {
		return found, fmt.Errorf("locked %d of %d topics and got %d of %d sequence ids",
			len(found.Heads), len(batch.Topics), len(found.IDs), len(batch.Drafts))
	}
	return found, nil
}

func setting(name string, limit time.Duration) call {
	return call{statement: settingStatement, params: [][]byte{[]byte(name), []byte(milliseconds(limit))}}
}

func (l *Locked) readBegin(values [][]byte) error {
	c := columns{values: values}
	l.ServerNS, l.xid = c.int64(), c.int64()
	l.IDs = c.sequenceIDs()
	return c.err
}

// storedCall collects which of n envelopes are stored.
func storedCall(n int, name func(int) topic.Topic, hash func(int) *envelope.MessageHash, into *map[int]envelope.Meta) call {
	return call{
		statement: storedStatement,
		params:    [][]byte{topicArray(n, name), byteaArray(n, func(i int) []byte { return hash(i)[:] })},
		row: func(values [][]byte) error {
			c := columns{values: values}
			at := int(c.int64()) - 1 // WITH ORDINALITY counts from 1
			meta := envelope.Meta{
				SequenceID: topic.SequenceID(c.int64()), ServerNS: c.int64(), ExpiryNS: c.int64(), IsCommitOrProposal: c.bool(),
			}
			if c.err != nil {
				return c.err
			}
			meta.Topic, meta.MessageHash = name(at), *hash(at)
			if *into == nil {
				*into = make(map[int]envelope.Meta)
			}
			(*into)[at] = meta
			return nil
		},
	}
}

// write stores the rows and commits, in one round trip.
func write(ctx context.Context, conn *pgx.Conn, batch *Batch, locked Locked, verdict Verdict, outcome Outcome, heads []topic.SequenceID) error {
	moved := make([]int, 0, len(heads))
	for i, head := range heads {
		if head != locked.Heads[i] {
			moved = append(moved, i)
		}
	}
	calls := make([]call, 0, 5)
	calls = append(calls,
		rowsCall(batch, locked, verdict.Store, outcome),
		call{statement: moveHeadsStatement, params: [][]byte{
			topicArray(len(moved), func(i int) topic.Topic { return batch.Topics[moved[i]] }),
			bigintArray(len(moved), func(i int) int64 { return int64(heads[moved[i]]) }),
		}})
	if len(verdict.Added) > 0 {
		calls = append(calls, associationsCall(associateStatement, verdict.Added, outcome))
	}
	if len(verdict.Removed) > 0 {
		calls = append(calls, associationsCall(revokeStatement, verdict.Removed, outcome))
	}
	calls = append(calls, call{statement: commitStatement})
	return exchange(ctx, conn, calls)
}

func rowsCall(batch *Batch, locked Locked, rows []int, outcome Outcome) call {
	n := len(rows)
	meta := func(i int) *envelope.Meta { return &outcome.Drafts[rows[i]].Meta }
	return call{statement: rowsStatement, params: [][]byte{
		bigint(locked.ServerNS),
		bigint(locked.xid),
		topicArray(n, func(i int) topic.Topic { return batch.topicOf(rows[i]) }),
		bigintArray(n, func(i int) int64 { return int64(meta(i).SequenceID) }),
		bigintArray(n, func(i int) int64 { return meta(i).ExpiryNS }),
		byteaArray(n, func(i int) []byte { return meta(i).MessageHash[:] }),
		booleanArray(n, func(i int) bool { return meta(i).IsCommitOrProposal }),
		byteaArray(n, func(i int) []byte { return batch.Drafts[rows[i]].Payload }),
	}}
}

func associationsCall(s statement, changes []Change, outcome Outcome) call {
	n := len(changes)
	return call{statement: s, params: [][]byte{
		smallintArray(n, func(i int) int16 { return changes[i].Kind }),
		textArray(n, func(i int) string { return changes[i].Identifier }),
		byteaArray(n, func(i int) string { return changes[i].InboxID }),
		bigintArray(n, func(i int) int64 { return int64(outcome.Drafts[changes[i].Draft].Meta.SequenceID) }),
	}}
}
