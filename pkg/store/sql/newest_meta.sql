-- The metadata of the newest envelope of each topic that has one, in the order of $1. No payload is read.
-- Snapshot: one for all; no locks. One backward probe of the primary key a topic. Going by topic_heads takes a second
-- probe and twice the time, and finds nothing where the newest envelope has been deleted.
SELECT t.n, e.sequence_id, e.server_ns, e.expiry_ns, e.message_hash, e.is_commit_or_proposal
FROM unnest($1::bytea[]) WITH ORDINALITY AS t (topic, n)
CROSS JOIN LATERAL (
    SELECT sequence_id, server_ns, coalesce(expiry_ns, 0) AS expiry_ns, message_hash, is_commit_or_proposal
    FROM envelopes
    WHERE envelopes.topic = t.topic
    ORDER BY sequence_id DESC
    LIMIT 1
) AS e
