-- publish_at_once for a single envelope: what most transactions of a quiet
-- publisher are. The same proof of order, without arrays.
WITH head AS (
    INSERT INTO topic_heads AS h (topic, last_sequence_id)
    VALUES ($1::bytea, nextval('envelope_sequence'))
    ON CONFLICT (topic) DO UPDATE
    SET previous_sequence_id = h.last_sequence_id, last_sequence_id = excluded.last_sequence_id
    WHERE h.last_sequence_id < excluded.last_sequence_id
    RETURNING last_sequence_id, previous_sequence_id, (extract(epoch FROM transaction_timestamp()) * 1000000000)::bigint AS server_ns
), stored AS (
    INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
    SELECT $1, last_sequence_id, server_ns, server_ns + nullif($3::bigint, 0), $2::bytea, $4::boolean, pg_current_xact_id()::text::bigint, $5::bytea
    FROM head
    ON CONFLICT (topic, message_hash) DO NOTHING
    RETURNING sequence_id
)
SELECT (SELECT server_ns FROM head), ARRAY(SELECT last_sequence_id FROM head), ARRAY(SELECT previous_sequence_id FROM head)
WHERE CASE WHEN EXISTS (SELECT FROM stored) THEN true ELSE raise_publish_conflict() END
