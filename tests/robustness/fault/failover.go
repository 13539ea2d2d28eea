package fault

import (
	"context"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Failover is a change of primaries that may have lost what was stored last.
type Failover struct {
	// Newest is the highest sequence id that the promoted server had.
	Newest topic.SequenceID
}

// May ids around the newest be missing: some transactions that the replica did not
// have took smaller ids than others that it had.
const concurrent topic.SequenceID = 10_000

// advance is how far a publisher moves the sequence on, at least (I11).
const advance topic.SequenceID = 1_000_000

// Lost says whether the failover may have lost an id.
func (f Failover) Lost(id topic.SequenceID) bool {
	return id+concurrent > f.Newest && id < f.Newest+advance
}

// FailOver makes the replica the primary of all publishers and of the reader.
func (c *Cluster) FailOver(ctx context.Context) error {
	if err := c.Replica.Promote(ctx); err != nil {
		return err
	}
	newest, err := c.newest(ctx)
	if err != nil {
		return err
	}
	c.Failovers = append(c.Failovers, Failover{newest})
	if c.OnFailover != nil {
		c.OnFailover()
	}
	for _, way := range []string{PublishersToPrimary, ReaderToPrimary} {
		c.Proxies[way].Retarget(address(c.Replica.Port()))
	}
	return nil
}

// newest is the highest sequence id that the replica has.
func (c *Cluster) newest(ctx context.Context) (id topic.SequenceID, err error) {
	conn, err := pgx.Connect(ctx, c.DatabaseURL(c.Replica))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = conn.QueryRow(ctx, `SELECT coalesce(max(last_sequence_id), 0) FROM topic_heads`).Scan(&id)
	return id, err
}

// takeOver is an asynchronous failover: the replica lags for a while, the primary
// cannot be reached and dies for good, the replica is promoted, and another
// follows it. What was on its way to the old primary learns of its end when the
// new one is there: whoever tries again at once is on another history.
func (c *Cluster) takeOver(ctx context.Context, lag time.Duration) error {
	c.Proxies[ReplicaToPrimary].Cut()
	time.Sleep(lag)
	c.Proxies[PublishersToPrimary].Stall()
	if err := c.Primary.Kill(); err != nil {
		return err
	}
	err := c.FailOver(ctx)
	c.Proxies[PublishersToPrimary].Heal()
	if err != nil {
		return err
	}
	gone := c.Primary.Dir()
	c.Primary, c.Replica = c.Replica, nil
	c.Proxies[ReplicaToPrimary].Retarget(address(c.Primary.Port()))
	c.Proxies[ReplicaToPrimary].Heal()
	if err := c.startReplica(ctx); err != nil {
		return err
	}
	// Until now what reads a replica read the promoted one.
	for _, way := range []string{ReaderToReplica, StreamersToReplica} {
		c.Proxies[way].Retarget(address(c.Replica.Port()))
	}
	return os.RemoveAll(gone)
}
