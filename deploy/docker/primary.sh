#!/bin/sh
# Runs once in a new primary: lets the replica connect and keeps for it what it has not received yet.
set -eu
psql --no-psqlrc --quiet -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" -v password="$REPLICATION_PASSWORD" <<'SQL'
CREATE ROLE replicator REPLICATION LOGIN PASSWORD :'password';
SELECT pg_create_physical_replication_slot('replica');
SQL
echo "host replication replicator all scram-sha-256" >>"$PGDATA/pg_hba.conf"
