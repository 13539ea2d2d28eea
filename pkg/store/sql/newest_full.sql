-- The newest envelope of each topic that has one, in the order of $1, with the payload bytes of all together.
-- $2 is the most payload bytes: when they are more, no payload is read.
-- Snapshot: one for all; no locks. One backward probe of the primary key a topic.
SELECT n, bytes, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal,
    CASE WHEN bytes <= $2::bigint THEN payload END
FROM (
    SELECT t.n, e.*, coalesce(sum(octet_length(e.payload)) OVER (), 0)::bigint AS bytes
    FROM unnest($1::bytea[]) WITH ORDINALITY AS t (topic, n)
    CROSS JOIN LATERAL (
        SELECT sequence_id, server_ns, coalesce(expiry_ns, 0) AS expiry_ns, message_hash, is_commit_or_proposal, payload
        FROM envelopes
        WHERE envelopes.topic = t.topic
        ORDER BY sequence_id DESC
        LIMIT 1
    ) AS e
) AS found
