package store

import (
	"context"
	_ "embed"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

var (
	//go:embed sql/sweep.sql
	sweepSQL string
	//go:embed sql/hint.sql
	hintSQL string

	sweepStatement = statement{"a page of the sweep", sweepSQL}
	hintStatement  = statement{"a hint of the sweep", hintSQL}
)

// SweepRow says that a transaction stored envelopes on a topic.
type SweepRow struct {
	CommitXID uint64
	Topic     topic.Topic
	// SequenceID is the newest of them, Envelopes their number. A topic's head
	// is at least SequenceID.
	SequenceID topic.SequenceID
	Envelopes  int64
}

// SweepWindow is what a page of the sweep asks for: the transactions in
// [Low, High).
type SweepWindow struct {
	Low uint64
	// High is 0 on the first page of a window, which returns it, and that value
	// on the pages that follow.
	High uint64
	// After is the last row of the page before; the zero value is the beginning.
	After SweepRow
}

// SweepPage is one page, ordered by transaction and topic.
type SweepPage struct {
	// High is the end of the window: every transaction below it has ended. When
	// the last page is done, it is the next Low.
	High uint64
	// Xmax is the end of this page's snapshot: no transaction from it on had
	// ended. It is where a later Hint starts.
	Xmax uint64
	Rows []SweepRow
	// More says that the page is full and another one may follow.
	More bool
}

// Sweep reads one page of at most limit rows. High is returned even when there
// are no rows.
func (p *InstancePool) Sweep(ctx context.Context, window SweepWindow, limit int) (SweepPage, error) {
	page, err := p.sweep(ctx, sweepStatement, bigint(int64(window.Low)), bigint(int64(window.High)),
		bigint(int64(window.After.CommitXID)), []byte(window.After.Topic), bigint(int64(limit)))
	if err == nil {
		p.reached(page.High)
	}
	page.More = len(page.Rows) >= limit
	return page, err
}

// Hint reads what is visible of the transactions from the given one on and below
// the end of its snapshot, at most limit envelopes. It proves nothing and moves no
// window; High is only the xmin of its snapshot. With More, the last transaction
// may be incomplete.
func (p *InstancePool) Hint(ctx context.Context, from uint64, limit int) (SweepPage, error) {
	page, err := p.sweep(ctx, hintStatement, bigint(int64(from)), bigint(int64(limit)))
	seen := int64(0)
	for _, row := range page.Rows {
		seen += row.Envelopes
	}
	page.More = seen >= int64(limit)
	return page, err
}

func (p *InstancePool) sweep(ctx context.Context, s statement, params ...[]byte) (SweepPage, error) {
	var page SweepPage
	err := p.onInstance(ctx, func() error {
		return p.read(ctx, s, params, func() { page = SweepPage{} }, func(values [][]byte) error {
			c := columns{values: values}
			page.High, page.Xmax = uint64(c.int64()), uint64(c.int64())
			if c.isNull() {
				return c.err
			}
			page.Rows = append(page.Rows, SweepRow{
				CommitXID:  uint64(c.int64()),
				Topic:      topic.Topic(c.bytes()),
				SequenceID: topic.SequenceID(c.int64()),
				Envelopes:  c.int64(),
			})
			return c.err
		})
	})
	if err != nil {
		return SweepPage{}, err
	}
	return page, nil
}
