-- What is visible of the transactions from $1 on, newest sequence id per transaction and topic, at most $2 of them, with
-- the xmin and xmax of the snapshot. Transactions in this range may still run: this is a hint that proves nothing.
-- Snapshot: one; no locks.
WITH snapshot AS MATERIALIZED (
    SELECT pg_snapshot_xmin(s)::text::bigint AS high, pg_snapshot_xmax(s)::text::bigint AS xmax FROM pg_current_snapshot() AS s
)
SELECT snapshot.high, snapshot.xmax, e.commit_xid, e.topic, e.sequence_id, e.envelopes
FROM snapshot
LEFT JOIN LATERAL (
    SELECT commit_xid, topic, max(sequence_id) AS sequence_id, count(*) AS envelopes
    FROM envelopes
    WHERE commit_xid >= $1::bigint
    GROUP BY commit_xid, topic
    ORDER BY commit_xid, topic
    LIMIT $2::bigint
) AS e ON true
