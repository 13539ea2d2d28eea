-- How far this server is behind its primary, in microseconds. 0 on a primary, and on a standby that has replayed all it
-- received from a primary it is connected to. Otherwise it is the age of the last transaction that was replayed, which is
-- too much when the primary has been idle before: one figure alone means nothing, a row of them does.
-- Snapshot: none needed; no locks.
SELECT CASE
    WHEN NOT pg_is_in_recovery() THEN 0
    WHEN EXISTS (SELECT FROM pg_stat_wal_receiver) AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn() THEN 0
    ELSE greatest(0, extract(epoch FROM
        clock_timestamp() - coalesce(pg_last_xact_replay_timestamp(), pg_postmaster_start_time())) * 1000000)
END::bigint
