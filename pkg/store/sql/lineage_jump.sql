-- Moves the sequence on, beyond what can have been given out after the last
-- write that this server remembers: the newest envelope, else the record of the
-- lineage ($3), else the making of the schema. A jump that is made later from the
-- same place is longer, by more than what was given out in between. It is not undone
-- by a rollback, and sessions that take ids at the same time only see it grow.
SELECT setval('envelope_sequence', s.last_value + $1::bigint + ($2::bigint * greatest(elapsed.seconds, 0))::bigint)
FROM envelope_sequence AS s,
     (SELECT extract(epoch FROM clock_timestamp()) - coalesce(
          (SELECT server_ns FROM envelopes ORDER BY commit_xid DESC LIMIT 1) / 1000000000.0,
          extract(epoch FROM coalesce($3::timestamptz, (SELECT min(tstamp) FROM goose_db_version)::timestamptz))) AS seconds) AS elapsed
