-- What the transaction gives to its rows: its start, which is their time, its id,
-- and sequence ids. They are taken after the locks, so
-- that their order is the order of commit on each locked topic (API-011). Ids
-- that no row gets are gaps (API-013).
SELECT (extract(epoch FROM transaction_timestamp()) * 1000000000)::bigint,
       pg_current_xact_id()::text::bigint,
       ARRAY(SELECT nextval('envelope_sequence') FROM generate_series(1, $1::integer))
