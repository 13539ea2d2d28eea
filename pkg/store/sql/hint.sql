-- What is visible of the transactions from $1 on, newest sequence id per transaction and topic, with the xmin and xmax of
-- the snapshot; $2 bounds the envelopes that are looked at, in the order of their transactions. Transactions in this range
-- may still run: this is a hint that proves nothing.
-- Snapshot: one; no locks. Nothing at or above xmax is visible, unless the rows came from another cluster by a dump: the
-- transaction ids that those carry may lie far above, and were read again by each hint.
WITH snapshot AS MATERIALIZED (
    SELECT pg_snapshot_xmin(s)::text::bigint AS high, pg_snapshot_xmax(s)::text::bigint AS xmax FROM pg_current_snapshot() AS s
)
SELECT snapshot.high, snapshot.xmax, e.commit_xid, e.topic, e.sequence_id, e.envelopes
FROM snapshot
LEFT JOIN LATERAL (
    SELECT seen.commit_xid, seen.topic, max(seen.sequence_id) AS sequence_id, count(*) AS envelopes
    FROM (
        SELECT commit_xid, topic, sequence_id
        FROM envelopes
        WHERE commit_xid >= $1::bigint AND commit_xid < snapshot.xmax
        ORDER BY commit_xid
        LIMIT $2::bigint
    ) AS seen
    GROUP BY seen.commit_xid, seen.topic
    ORDER BY seen.commit_xid, seen.topic
) AS e ON true
