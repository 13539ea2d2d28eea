-- Takes the row lock of every topic, in the order of the array, which is sorted:
-- topics without a row get one. All transactions lock in the same order, so they
-- cannot wait for each other in a circle. The update never happens, but it
-- locks the row (PostgreSQL manual, INSERT, ON CONFLICT).
INSERT INTO topic_heads AS h (topic, last_sequence_id)
SELECT topic, 0 FROM unnest($1::bytea[]) AS wanted (topic)
ON CONFLICT (topic) DO UPDATE SET last_sequence_id = 0 WHERE false
