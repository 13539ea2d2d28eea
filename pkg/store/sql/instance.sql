-- Which server instance answers, and the oldest transaction that may still run there.
-- Snapshot: one; no locks. Runs on a primary and on a hot standby.
--
-- The timeline of a primary is in the name of the file it writes: its control file is stale after a promotion. A standby
-- may not name that file, and its control file is stale until its next restart point; the WAL receiver knows better
-- (readable with pg_monitor only), and so does the lineage row, which a publisher writes before its first envelope on a
-- new timeline. Timelines only rise, so the greatest is right.
SELECT
    control.system_identifier,
    CASE WHEN pg_is_in_recovery() THEN
        greatest(
            (SELECT timeline_id FROM pg_control_checkpoint()),
            (SELECT min_recovery_end_timeline FROM pg_control_recovery()),
            (SELECT received_tli FROM pg_stat_wal_receiver),
            (SELECT timeline FROM lineage WHERE lineage.system_identifier = control.system_identifier))
    ELSE
        ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer
    END AS timeline,
    coalesce(host(inet_server_addr()), 'socket') || ':' || coalesce(inet_server_port()::text, current_setting('port')) AS address,
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS postmaster_start_us,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin,
    EXISTS (SELECT FROM lineage WHERE lineage.system_identifier <> control.system_identifier) AS is_foreign
FROM pg_control_system() AS control
