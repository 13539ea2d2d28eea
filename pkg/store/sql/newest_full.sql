-- The newest envelope of each topic that has one, in the order of $1, with the payload bytes of all together.
-- $2 is the most payload bytes: when they are more, no payload is read.
-- Snapshot: one for all; no locks. One probe of topic_heads and one of the primary key of envelopes a topic.
SELECT n, bytes, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal,
    CASE WHEN bytes <= $2::bigint THEN payload END
FROM (
    SELECT t.n, e.*, coalesce(sum(octet_length(e.payload)) OVER (), 0)::bigint AS bytes
    FROM unnest($1::bytea[]) WITH ORDINALITY AS t (topic, n)
    CROSS JOIN LATERAL (
        SELECT sequence_id, server_ns, coalesce(expiry_ns, 0) AS expiry_ns, message_hash, is_commit_or_proposal, payload
        FROM topic_heads
        JOIN envelopes ON envelopes.topic = t.topic AND envelopes.sequence_id = topic_heads.last_sequence_id
        WHERE topic_heads.topic = t.topic
        LIMIT 1
    ) AS e
) AS found
