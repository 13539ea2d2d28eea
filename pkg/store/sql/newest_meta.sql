-- The metadata of the newest envelope of each topic that has one, in the order of $1. No payload is read.
-- Snapshot: one for all; no locks. One probe of topic_heads and one of the primary key of envelopes a topic.
SELECT t.n, e.sequence_id, e.server_ns, e.expiry_ns, e.message_hash, e.is_commit_or_proposal
FROM unnest($1::bytea[]) WITH ORDINALITY AS t (topic, n)
CROSS JOIN LATERAL (
    SELECT sequence_id, server_ns, coalesce(expiry_ns, 0) AS expiry_ns, message_hash, is_commit_or_proposal
    FROM topic_heads
    JOIN envelopes ON envelopes.topic = t.topic AND envelopes.sequence_id = topic_heads.last_sequence_id
    WHERE topic_heads.topic = t.topic
    LIMIT 1
) AS e
