-- Which of the envelopes are stored already (API-033), each with its place in
-- the arrays, from 1. Inside a publish it follows the locks: see publish_heads.
SELECT wanted.n, e.sequence_id, e.server_ns, coalesce(e.expiry_ns, 0), e.is_commit_or_proposal
FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS wanted (topic, message_hash, n)
JOIN envelopes AS e ON e.topic = wanted.topic AND e.message_hash = wanted.message_hash
