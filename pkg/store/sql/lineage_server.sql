-- Which cluster this is, on which timeline, and since when its server runs. The
-- timeline is the first part of a WAL file's name.
SELECT (SELECT system_identifier FROM pg_control_system()),
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer,
       pg_postmaster_start_time()
