-- The whole log of an inbox in one statement, so that its last row is its
-- version (API-051). The length of a payload is known without reading it.
SELECT sequence_id, message_hash, octet_length(payload), NULL::bytea
FROM envelopes
WHERE topic = $1
ORDER BY sequence_id
