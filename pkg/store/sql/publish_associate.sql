-- Members that identity updates brought in (API-122), written with the updates.
-- A batch holds one update per inbox, so no row is meant twice.
INSERT INTO identifier_associations AS a (identifier_kind, identifier, inbox_id, association_sequence_id, revocation_sequence_id)
SELECT identifier_kind, identifier, inbox_id, sequence_id, NULL
FROM unnest($1::smallint[], $2::text[], $3::bytea[], $4::bigint[]) AS added (identifier_kind, identifier, inbox_id, sequence_id)
ON CONFLICT (identifier_kind, identifier, inbox_id) DO UPDATE
SET association_sequence_id = excluded.association_sequence_id, revocation_sequence_id = NULL
