#!/bin/sh
# Starts a streaming replica; a new one copies the primary first. PGPASSWORD is the replicator's.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  until pg_basebackup --host "$PRIMARY_HOST" --port "${PRIMARY_PORT:-5432}" --username replicator --no-password \
    --pgdata "$PGDATA" --slot replica --write-recovery-conf --checkpoint fast; do
    echo "the primary is not ready for a copy; trying again" >&2
    find "$PGDATA" -mindepth 1 -delete
    sleep 1
  done
  chmod 0700 "$PGDATA"
fi
unset PGPASSWORD # the copy remembers it
exec postgres -c hot_standby_feedback=on -c wal_receiver_status_interval=1s "$@"
