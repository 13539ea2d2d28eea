-- The inbox that each identifier resolves to: the latest association that is not revoked. $1 kinds, $2 identifiers.
-- Snapshot: one for all; no locks. One probe of the partial index an identifier, which holds the inbox id, too.
SELECT t.n, a.inbox_id
FROM unnest($1::smallint[], $2::text[]) WITH ORDINALITY AS t (kind, identifier, n)
CROSS JOIN LATERAL (
    SELECT inbox_id
    FROM identifier_associations
    WHERE identifier_kind = t.kind AND identifier = t.identifier AND revocation_sequence_id IS NULL
    ORDER BY association_sequence_id DESC
    LIMIT 1
) AS a
