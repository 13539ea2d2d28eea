-- Stores an envelope without what a publisher needs to know about it: the head
-- before it, and that ids are in order. Its parameters are those of
-- store.StatementOfOne.
WITH head AS (
    INSERT INTO topic_heads AS h (topic, last_sequence_id)
    VALUES ($1, nextval('envelope_sequence'))
    ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id
    RETURNING topic, last_sequence_id
)
INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
SELECT topic, last_sequence_id, (extract(epoch FROM now()) * 1000000000)::bigint, (extract(epoch FROM now()) * 1000000000)::bigint + $3,
       $2, $4, pg_current_xact_id()::text::bigint, $5::bytea
FROM head
ON CONFLICT (topic, message_hash) DO NOTHING
