-- Which cluster this is, on which timeline, and since when its server runs. The
-- timeline is the first part of a WAL file's name; pg_control_checkpoint would show
-- the old one for a while after a promotion.
--
-- Then, what synchronous_commit is for this session, and what it is from now on: a
-- publish is answered after its commit (API-016), so what the server is not to wait
-- for at all, it waits for here. Whatever else the operator chose stays.
SELECT (SELECT system_identifier FROM pg_control_system()),
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer,
       pg_postmaster_start_time(),
       reset_val,
       CASE WHEN setting = 'off' THEN set_config('synchronous_commit', 'on', false) ELSE setting END
FROM pg_settings
WHERE name = 'synchronous_commit'
