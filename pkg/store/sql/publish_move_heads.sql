-- Moves the heads of topics whose locks this transaction holds.
UPDATE topic_heads AS h SET previous_sequence_id = h.last_sequence_id, last_sequence_id = moved.last_sequence_id
FROM unnest($1::bytea[], $2::bigint[]) AS moved (topic, last_sequence_id)
WHERE h.topic = moved.topic
