-- A whole publish in one statement, for envelopes that are to be stored whatever
-- is found: those that are stored already are left out and told.
--
-- Sequence ids are taken before the locks here, so their order has to be proven:
-- a head may only be moved to ids that are all above it. If another process wrote
-- to one of the topics after our ids were taken, its head is not below them, and
-- the whole statement fails with serialization_failure. So it does if another
-- process stored one of the envelopes after our snapshot. The caller then takes
-- the way with locks first.
--
-- Heads are locked in the order of their topics, as in publish_lock_topics, and
-- all of them before the first row is written.
WITH start AS MATERIALIZED (
    SELECT (extract(epoch FROM transaction_timestamp()) * 1000000000)::bigint AS server_ns
), wanted AS MATERIALIZED (
    -- One scan without a join: ids are in the order of the request.
    SELECT w.*, CASE WHEN w.stored_id IS NULL THEN nextval('envelope_sequence') END AS new_id
    FROM (
        SELECT u.*, (SELECT e.sequence_id FROM envelopes AS e WHERE e.topic = u.topic AND e.message_hash = u.message_hash) AS stored_id
        FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::boolean[], $5::bytea[])
            WITH ORDINALITY AS u (topic, message_hash, retention_ns, is_commit_or_proposal, payload, n)
        OFFSET 0 -- keeps the look-up from being done once for each use
    ) AS w
), moved AS MATERIALIZED (
    SELECT topic, max(new_id) AS last_sequence_id FROM wanted WHERE new_id IS NOT NULL GROUP BY topic
), heads AS (
    INSERT INTO topic_heads AS h (topic, last_sequence_id)
    SELECT topic, last_sequence_id FROM moved ORDER BY topic
    ON CONFLICT (topic) DO UPDATE
    SET previous_sequence_id = h.last_sequence_id, last_sequence_id = excluded.last_sequence_id
    WHERE h.last_sequence_id < (SELECT min(new_id) FROM wanted)
    RETURNING topic, previous_sequence_id
), stored AS (
    INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
    SELECT topic, new_id, (SELECT server_ns FROM start), (SELECT server_ns FROM start) + nullif(retention_ns, 0),
           message_hash, is_commit_or_proposal, (SELECT pg_current_xact_id()::text::bigint), payload
    FROM wanted
    WHERE new_id IS NOT NULL AND (SELECT count(*) FROM heads) = (SELECT count(*) FROM moved)
    ON CONFLICT (topic, message_hash) DO NOTHING
    RETURNING sequence_id
)
-- First a row for each envelope, with its place from 1, then one for each head.
SELECT w.n, coalesce(w.new_id, 0), coalesce(w.stored_id, 0), coalesce(e.server_ns, (SELECT server_ns FROM start)), coalesce(e.expiry_ns, 0),
       coalesce(e.is_commit_or_proposal, false), ''::bytea
FROM wanted AS w
LEFT JOIN envelopes AS e ON e.topic = w.topic AND e.sequence_id = w.stored_id
WHERE CASE WHEN (SELECT count(*) FROM stored) = (SELECT count(new_id) FROM wanted) THEN true ELSE raise_publish_conflict() END
UNION ALL
SELECT 0, 0, previous_sequence_id, 0, 0, false, topic FROM heads
