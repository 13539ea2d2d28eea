-- Members that identity updates removed.
UPDATE identifier_associations AS a SET revocation_sequence_id = removed.sequence_id
FROM unnest($1::smallint[], $2::text[], $3::bytea[], $4::bigint[]) AS removed (identifier_kind, identifier, inbox_id, sequence_id)
WHERE a.identifier_kind = removed.identifier_kind AND a.identifier = removed.identifier AND a.inbox_id = removed.inbox_id
