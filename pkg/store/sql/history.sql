-- The whole log of an inbox in one statement, so that its last row is its
-- version (API-051).
SELECT sequence_id, message_hash, payload
FROM envelopes
WHERE topic = $1
ORDER BY sequence_id
