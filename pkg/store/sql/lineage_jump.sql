-- Moves the sequence on, beyond what can have been given out after the last
-- write that this server remembers. It is not undone by a rollback, and sessions
-- that take ids at the same time only see it grow.
SELECT setval('envelope_sequence', s.last_value + greatest($1::bigint, $2::bigint * elapsed.seconds))
FROM envelope_sequence AS s,
     (SELECT ceil(extract(epoch FROM clock_timestamp()) - coalesce(
          (SELECT server_ns FROM envelopes ORDER BY commit_xid DESC LIMIT 1) / 1000000000,
          extract(epoch FROM $3::timestamptz)))::bigint AS seconds) AS elapsed
