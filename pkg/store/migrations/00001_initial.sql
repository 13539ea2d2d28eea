-- +goose Up
-- Sequence ids come from one sequence and are unique across all topics
-- (API-010). CACHE 1: a session never holds back ids that another one passes.
CREATE SEQUENCE envelope_sequence AS bigint START 1 MINVALUE 1 CACHE 1 NO CYCLE;

-- Every key starts with the topic, so that the table can be hash-partitioned by
-- topic without a redesign.
CREATE TABLE envelopes (
    topic                 bytea   NOT NULL,
    sequence_id           bigint  NOT NULL,
    server_ns             bigint  NOT NULL,
    expiry_ns             bigint,
    message_hash          bytea   NOT NULL,
    is_commit_or_proposal boolean NOT NULL,
    commit_xid            bigint  NOT NULL,
    payload               bytea   NOT NULL,
    CONSTRAINT envelopes_pkey PRIMARY KEY (topic, sequence_id),
    CONSTRAINT envelopes_topic_message_hash_key UNIQUE (topic, message_hash)
);
-- Ciphertext does not compress: large payloads go out of line as they are.
ALTER TABLE envelopes ALTER COLUMN payload SET STORAGE EXTERNAL;
-- The sweep reads by the window of transactions that its snapshots prove ended.
CREATE INDEX envelopes_commit_xid_idx ON envelopes (commit_xid);

-- The committed head of each topic: the catch-up target, the newest-envelope
-- index, the identity version and the per-topic lock, all in one row. 0 is a
-- topic without an envelope. Room on each page keeps its updates in place.
CREATE TABLE topic_heads (
    topic            bytea  NOT NULL,
    last_sequence_id bigint NOT NULL,
    CONSTRAINT topic_heads_pkey PRIMARY KEY (topic)
) WITH (fillfactor = 70);

-- What GetInboxIds answers from, written with the identity update (API-122).
CREATE TABLE identifier_associations (
    identifier_kind         smallint NOT NULL,
    identifier              text     COLLATE "C" NOT NULL,
    inbox_id                bytea    NOT NULL,
    association_sequence_id bigint   NOT NULL,
    revocation_sequence_id  bigint,
    CONSTRAINT identifier_associations_pkey PRIMARY KEY (identifier_kind, identifier, inbox_id)
);
CREATE INDEX identifier_associations_active_idx
    ON identifier_associations (identifier_kind, identifier, association_sequence_id DESC)
    INCLUDE (inbox_id)
    WHERE revocation_sequence_id IS NULL;

-- The cluster history that the sequence belongs to. A publisher that finds
-- itself on another one first moves the sequence on, so that no id a client may
-- have seen is ever given again (invariant I11). A copy of the data directory
-- that is put back has the old identifier and timeline, but its server started
-- anew.
CREATE TABLE lineage (
    only_row          boolean     NOT NULL DEFAULT true,
    system_identifier bigint      NOT NULL,
    timeline          integer     NOT NULL,
    server_started    timestamptz NOT NULL,
    CONSTRAINT lineage_pkey PRIMARY KEY (only_row),
    CONSTRAINT lineage_only_row_check CHECK (only_row)
);
