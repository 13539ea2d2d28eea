-- A page of a query of one topic, as most are: what query.sql answers, without arrays and rounds, for two thirds of the work.
-- $1 topic, $2 cursor, $3 rows of the page, $4 the most payload bytes. Snapshot: one for both probes; no locks.
-- The first probe of the primary key measures the page. Lengths are known without reading what is stored out of line, so
-- that the second reads payloads of the page only, and none when they are too long together.
WITH page AS MATERIALIZED (
    SELECT max(sequence_id) AS last, coalesce(sum(octet_length(payload)), 0)::bigint AS bytes
    FROM (
        SELECT sequence_id, payload
        FROM envelopes
        WHERE topic = $1::bytea AND sequence_id > $2::bigint
        ORDER BY sequence_id
        LIMIT $3::bigint
    ) AS measured
)
SELECT 1::bigint, (SELECT bytes FROM page), sequence_id, server_ns, coalesce(expiry_ns, 0), message_hash, is_commit_or_proposal,
    CASE WHEN sequence_id <= (SELECT last FROM page) AND (SELECT bytes FROM page) <= $4::bigint THEN payload END
FROM envelopes
WHERE topic = $1::bytea AND sequence_id > $2::bigint
ORDER BY sequence_id
LIMIT $3::bigint + 1
