-- Rows above the cursor of each topic, at most $3[i] for topic i, until their payloads pass $4 bytes.
-- $1 topics, $2 cursors, $3 limits, $4 bytes. Snapshot: one for all; no locks.
-- Each topic is one bounded probe of the primary key. The budget is spent in turns: the first row of every topic, then
-- the second of every topic, so that one long topic does not starve the others; the very first row always passes. The
-- length of a payload is known without reading it when it is stored out of line, and those left out are never read.
SELECT r.n, r.sequence_id, r.server_ns, r.expiry_ns, r.message_hash, r.is_commit_or_proposal, r.payload, r.found
FROM (
    SELECT t.n, e.*,
        sum(octet_length(e.payload)) OVER (ORDER BY e.turn, t.n ROWS UNBOUNDED PRECEDING) - octet_length(e.payload) AS before,
        count(*) OVER () AS found
    FROM unnest($1::bytea[], $2::bigint[], $3::integer[]) WITH ORDINALITY AS t (topic, cursor, max_rows, n)
    CROSS JOIN LATERAL (
        SELECT row_number() OVER (ORDER BY e.sequence_id) AS turn,
            e.sequence_id, e.server_ns, coalesce(e.expiry_ns, 0) AS expiry_ns, e.message_hash, e.is_commit_or_proposal, e.payload
        FROM envelopes AS e
        WHERE e.topic = t.topic AND e.sequence_id > t.cursor
        ORDER BY e.sequence_id
        LIMIT t.max_rows
    ) AS e
) AS r
WHERE r.before < $4
ORDER BY r.n, r.sequence_id
