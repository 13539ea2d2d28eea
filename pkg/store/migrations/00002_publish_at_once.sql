-- +goose Up
-- The head before the last one. It lets the statement that stores and moves a
-- head at once also say what the head was: see publish_at_once.sql.
ALTER TABLE topic_heads ADD COLUMN previous_sequence_id bigint NOT NULL DEFAULT 0;

-- Ends a statement, and with it its transaction. A name of its own keeps what
-- the server logs free of topics and hashes, which a constraint would name.
-- +goose StatementBegin
CREATE FUNCTION raise_publish_conflict() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a topic of this publish was written to meanwhile' USING ERRCODE = 'serialization_failure';
END
$$;
-- +goose StatementEnd
