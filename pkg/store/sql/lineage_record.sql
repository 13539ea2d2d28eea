INSERT INTO lineage (system_identifier, timeline, server_started) VALUES ($1, $2, $3)
ON CONFLICT (only_row) DO UPDATE
SET system_identifier = excluded.system_identifier, timeline = excluded.timeline, server_started = excluded.server_started
