INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
SELECT topic, sequence_id, $1::bigint, nullif(expiry_ns, 0), message_hash, is_commit_or_proposal, $2::bigint, payload
FROM unnest($3::bytea[], $4::bigint[], $5::bigint[], $6::bytea[], $7::boolean[], $8::bytea[])
    AS stored (topic, sequence_id, expiry_ns, message_hash, is_commit_or_proposal, payload)
