\set n random(1, :topics)
WITH head AS (
    INSERT INTO topic_heads AS h (topic, last_sequence_id)
    VALUES (decode('00' || lpad(to_hex(:n::integer), 32, 'f'), 'hex'), nextval('envelope_sequence'))
    ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id
    RETURNING topic, last_sequence_id
)
INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
SELECT topic, last_sequence_id, (extract(epoch FROM now()) * 1000000000)::bigint, (extract(epoch FROM now()) * 1000000000)::bigint + 7776000000000000,
       uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), false, pg_current_xact_id()::text::bigint, :payload::bytea
FROM head
ON CONFLICT (topic, message_hash) DO NOTHING;
