-- Serializes identity updates across all inboxes and publishers (API-014). It
-- is always the first lock of a transaction and ends with it. The key is ours
-- alone: advisory locks are per database.
SELECT pg_advisory_xact_lock(8245931098215104001)
