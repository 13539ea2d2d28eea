package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// overheadBytes is what an envelope has beside the ciphertext of its message.
const overheadBytes = 100

// leastStatement stores an envelope without what a publisher needs to know about
// it: the head before it, and that ids are in order. It takes the parameters of
// store.StatementOfOne and is for those who want to see what that costs.
const leastStatement = `WITH head AS (
    INSERT INTO topic_heads AS h (topic, last_sequence_id)
    VALUES ($1, nextval('envelope_sequence'))
    ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id
    RETURNING topic, last_sequence_id
)
INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
SELECT topic, last_sequence_id, (extract(epoch FROM now()) * 1000000000)::bigint, (extract(epoch FROM now()) * 1000000000)::bigint + $3,
       $2, $4, pg_current_xact_id()::text::bigint, $5::bytea
FROM head
ON CONFLICT (topic, message_hash) DO NOTHING`

// yardstick returns the script that pgbench runs and the options of its sessions:
// the statement that a publisher runs for one envelope, or the least one, with
// values of its own. The hash is random, which is cheaper for the server than
// hashing; 90 days are the retention of a group message.
func yardstick(least bool) (script, options string) {
	sql, settings := store.StatementOfOne()
	if least {
		sql, settings = leastStatement, nil
	}
	script = `\set n random(1, :topics)` + "\n" + strings.NewReplacer(
		"$1", `decode('00' || lpad(to_hex(:n::integer), 32, 'f'), 'hex')`,
		"$2", `(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))`,
		"$3", `7776000000000000`,
		"$4", `false`,
		"$5", `:payload`,
	).Replace(sql) + ";\n"
	var each []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		each = append(each, "-c "+name+"="+settings[name])
	}
	return script, strings.Join(each, " ")
}
