-- A whole publish in one statement, for envelopes that are all new. It stores all
-- of them or fails with serialization_failure; the caller then takes the way that
-- locks and looks first.
--
-- Sequence ids are taken before the locks here, so their order has to be proven:
-- a head is only moved to ids that are all above it. If another process wrote to
-- a topic after our ids were taken, its head is not below them. An envelope that
-- is stored already, or was meanwhile, is found by its key.
--
-- $1 to $5 have an entry for each envelope; $6 are the topics, sorted, and $7 the
-- place of the last envelope of each. Heads are locked in the order of the topics,
-- as in publish_lock_topics, and all of them before the first row is written.
WITH taken AS MATERIALIZED (
    SELECT ARRAY(SELECT nextval('envelope_sequence') FROM generate_series(1, cardinality($1::bytea[]))) AS ids,
           (extract(epoch FROM transaction_timestamp()) * 1000000000)::bigint AS server_ns
), heads AS (
    INSERT INTO topic_heads AS h (topic, last_sequence_id)
    SELECT m.topic, taken.ids[m.last]
    FROM taken, unnest($6::bytea[], $7::integer[]) AS m (topic, last)
    ON CONFLICT (topic) DO UPDATE
    SET previous_sequence_id = h.last_sequence_id, last_sequence_id = excluded.last_sequence_id
    WHERE h.last_sequence_id < (SELECT ids[1] FROM taken)
    RETURNING previous_sequence_id
), previous AS MATERIALIZED (
    SELECT ARRAY(SELECT previous_sequence_id FROM heads) AS heads
), stored AS (
    INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
    SELECT e.topic, e.sequence_id, taken.server_ns, taken.server_ns + nullif(e.retention_ns, 0), e.message_hash,
           e.is_commit_or_proposal, (SELECT pg_current_xact_id()::text::bigint), e.payload
    FROM taken, unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::boolean[], $5::bytea[], taken.ids)
        AS e (topic, message_hash, retention_ns, is_commit_or_proposal, payload, sequence_id)
    WHERE (SELECT cardinality(heads) FROM previous) = cardinality($6)
    ON CONFLICT (topic, message_hash) DO NOTHING
    RETURNING sequence_id
)
SELECT taken.server_ns, taken.ids, previous.heads
FROM taken, previous
WHERE CASE WHEN (SELECT count(*) FROM stored) = cardinality($1) THEN true ELSE raise_publish_conflict() END
