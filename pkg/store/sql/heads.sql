-- The heads of many topics, aligned with the input, 0 for none. $1 topics.
-- Snapshot: one for all; no locks. A correlated subquery is always one index probe a topic, whatever the planner
-- believes about the length of $1: with 100,000 topics a join would be tempted to scan the table.
SELECT array_agg(coalesce((SELECT h.last_sequence_id FROM topic_heads AS h WHERE h.topic = t.topic), 0) ORDER BY t.n)
FROM unnest($1::bytea[]) WITH ORDINALITY AS t (topic, n)
