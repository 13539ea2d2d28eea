-- A part of the log of an inbox with its payloads.
SELECT sequence_id, message_hash, octet_length(payload), payload
FROM envelopes
WHERE topic = $1 AND sequence_id > $2 AND sequence_id <= $3
ORDER BY sequence_id
