-- One page of the sweep: what was stored by the transactions of a window [$1, high), newest sequence id per transaction
-- and topic, in that order. $2 is a fixed high, or 0 to take it from this snapshot; ($3, $4) is the last transaction and
-- topic of the page before; $5 is the length of a page.
-- Snapshot: one; no locks. high is the xmin of the snapshot: every transaction below it has ended, so no row can appear
-- later behind the window. On a standby only xmin and xmax of a snapshot mean anything. One row without a topic comes
-- even when there is nothing, so that high always does.
WITH snapshot AS MATERIALIZED (
    SELECT CASE WHEN $2::bigint > 0 THEN $2::bigint ELSE pg_snapshot_xmin(s)::text::bigint END AS high,
        pg_snapshot_xmax(s)::text::bigint AS xmax
    FROM pg_current_snapshot() AS s
)
SELECT snapshot.high, snapshot.xmax, e.commit_xid, e.topic, e.sequence_id, e.envelopes
FROM snapshot
LEFT JOIN LATERAL (
    SELECT commit_xid, topic, max(sequence_id) AS sequence_id, count(*) AS envelopes
    FROM envelopes
    WHERE commit_xid >= greatest($1::bigint, $3::bigint) AND commit_xid < snapshot.high
        AND (commit_xid, topic) > ($3::bigint, $4::bytea)
    GROUP BY commit_xid, topic
    ORDER BY commit_xid, topic
    LIMIT $5::bigint
) AS e ON true
