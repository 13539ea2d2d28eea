-- The heads of locked topics, in the order of the array. A statement of its own,
-- after the locks: under READ COMMITTED its snapshot then holds all that the
-- earlier owners of the locks committed.
SELECT h.last_sequence_id
FROM unnest($1::bytea[]) WITH ORDINALITY AS wanted (topic, n)
JOIN topic_heads AS h ON h.topic = wanted.topic
ORDER BY wanted.n
