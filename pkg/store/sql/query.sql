-- A page of a query: what is above the cursor of each topic, cut at $3 rows.
-- $1 topics, $2 cursors, $3 rows of the page, $4 the share of each topic in the first round, $5 the most payload bytes.
-- Snapshot: one for the page and for has_more, which is a row beyond the page; no locks.
-- Every topic is one bounded probe of the primary key. In the first round each gives its share, until the page is full;
-- what then is missing comes from those that gave their whole share, one after the other. So a page is full whenever
-- there are rows enough, and costs at most two probes a topic and the rows of the page, however many lie above the
-- cursors.
-- Payloads out of line are read for the rows of the page only, and not at all when they are too long together.
WITH asked AS (
    SELECT topic, cursor, n FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS t (topic, cursor, n)
), shares AS MATERIALIZED (
    SELECT asked.n, e.*
    FROM asked
    CROSS JOIN LATERAL (
        SELECT sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, payload
        FROM envelopes
        WHERE envelopes.topic = asked.topic AND envelopes.sequence_id > asked.cursor
        ORDER BY sequence_id
        LIMIT $4::bigint
    ) AS e
    LIMIT $3::bigint + 1
), rest AS (
    SELECT asked.n, e.*
    FROM (SELECT n, max(sequence_id) AS reached FROM shares GROUP BY n HAVING count(*) = $4::bigint) AS whole
    CROSS JOIN LATERAL (SELECT asked.n, asked.topic FROM asked WHERE asked.n = whole.n LIMIT 1) AS asked
    CROSS JOIN LATERAL (
        SELECT sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, payload
        FROM envelopes
        WHERE envelopes.topic = asked.topic AND envelopes.sequence_id > whole.reached
        ORDER BY sequence_id
        LIMIT $3::bigint + 1
    ) AS e
    LIMIT $3::bigint + 1 - (SELECT count(*) FROM shares)
), numbered AS (
    SELECT *, row_number() OVER () AS place FROM (SELECT * FROM shares UNION ALL SELECT * FROM rest) AS found
), measured AS (
    SELECT *, coalesce(sum(octet_length(payload)) FILTER (WHERE place <= $3::bigint) OVER (), 0)::bigint AS bytes FROM numbered
)
SELECT n, bytes, sequence_id, server_ns, coalesce(expiry_ns, 0), message_hash, is_commit_or_proposal,
    CASE WHEN place <= $3::bigint AND bytes <= $5::bigint THEN payload END
FROM measured
