package store_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// manyRows fills a database with 1,000,000 envelopes on 10,000 topics, the
// largest of which has 55,000 and most of which have fewer than 20, and 200,000
// associations. Constraints come last, since that is many times faster.
const manyRows = `
ALTER TABLE envelopes DROP CONSTRAINT envelopes_pkey, DROP CONSTRAINT envelopes_topic_message_hash_key;
DROP INDEX envelopes_commit_xid_idx;
INSERT INTO envelopes (topic, sequence_id, server_ns, expiry_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
SELECT '\x00'::bytea || int8send(k) || int8send(0), n, 1000, NULL, sha256(int8send(n)), false, 3 + n / 10, '\x0a0a0a086162636465666768'
FROM (SELECT n, (10000 ^ ((n::bigint * 7919 % 1000003) / 1000003.0::float8))::bigint AS k FROM generate_series(1, 1000000) n) AS s;
SET maintenance_work_mem = '256MB';
ALTER TABLE envelopes ADD CONSTRAINT envelopes_pkey PRIMARY KEY (topic, sequence_id);
ALTER TABLE envelopes ADD CONSTRAINT envelopes_topic_message_hash_key UNIQUE (topic, message_hash);
CREATE INDEX envelopes_commit_xid_idx ON envelopes (commit_xid);
INSERT INTO topic_heads SELECT topic, max(sequence_id) FROM envelopes GROUP BY topic;
INSERT INTO identifier_associations
SELECT 1, '0x' || encode(substring(sha256(int8send(n / 2)) FOR 20), 'hex'), sha256(int8send(n)), n, CASE WHEN n % 5 = 0 THEN n END
FROM generate_series(1, 200000) n;
ANALYZE envelopes, topic_heads, identifier_associations`

// node is one step of a plan as EXPLAIN (FORMAT JSON) tells it.
type node struct {
	Type    string  `json:"Node Type"`
	Index   string  `json:"Index Name"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []node  `json:"Plans"`
}

func (n *node) walk(visit func(*node)) {
	visit(n)
	for i := range n.Plans {
		n.Plans[i].walk(visit)
	}
}

// explain runs a statement as the pools do, with the generic plan, and returns
// what it did.
func explain(t *testing.T, conn *pgx.Conn, name, file, types, arguments string) (plan node, took time.Duration) {
	t.Helper()
	text, err := os.ReadFile("sql/" + file)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), fmt.Sprintf("PREPARE %s (%s) AS %s", name, types, text))
	require.NoError(t, err)
	for range 2 { // the second finds everything in memory
		var raw []byte
		require.NoError(t, conn.QueryRow(t.Context(), fmt.Sprintf("EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT JSON) EXECUTE %s (%s)", name, arguments)).Scan(&raw))
		var explained []struct {
			Plan node            `json:"Plan"`
			Time float64         `json:"Execution Time"`
			JIT  json.RawMessage `json:"JIT"`
		}
		require.NoError(t, json.Unmarshal(raw, &explained))
		require.Empty(t, explained[0].JIT, "the statement is compiled, which takes longer than it runs")
		plan, took = explained[0].Plan, time.Duration(explained[0].Time*float64(time.Millisecond))
	}
	return plan, took
}

// topics is a SQL literal of n topics spread over all sizes.
func topics(n int) string {
	quoted := make([]string, n)
	for i := range quoted {
		quoted[i] = fmt.Sprintf(`"\\x%x"`, group(1+i*max(1, 10000/n)))
	}
	return "'{" + strings.Join(quoted, ",") + "}'"
}

// identifiers is a SQL literal of n identifiers that have associations.
func identifiers(n int) string {
	quoted := make([]string, n)
	for i := range quoted {
		hash := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(i+1)*100))
		quoted[i] = fmt.Sprintf("0x%x", hash[:20])
	}
	return "'{" + strings.Join(quoted, ",") + "}'"
}

func cursors(n, at int) string { return fmt.Sprintf("array_fill(%d::bigint, ARRAY[%d])", at, n) }

// Each statement goes by the intended indexes whatever the size of the tables.
func TestStatementsProbeTheirIndexes(t *testing.T) {
	url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	conn := connect(t, url)
	for _, step := range strings.Split(manyRows, ";") {
		_, err := conn.Exec(t.Context(), step)
		require.NoError(t, err)
	}
	t.Run("reads", func(t *testing.T) { testPlansOfReads(t, session(t, url, store.ReadSettings())) })
	t.Run("publish", func(t *testing.T) { testPlansOfPublish(t, session(t, url, store.PublisherSettings())) })
}

// session is a connection with the settings of a pool.
func session(t *testing.T, url string, settings map[string]string) *pgx.Conn {
	t.Helper()
	conn := connect(t, url)
	for name, value := range settings {
		_, err := conn.Exec(t.Context(), fmt.Sprintf("SET %s = '%s'", name, value))
		require.NoError(t, err)
	}
	return conn
}

// hashes is a SQL literal of n hashes that no row has.
func hashes(n int) string {
	quoted := make([]string, n)
	for i := range quoted {
		quoted[i] = fmt.Sprintf(`"\\x%x"`, sha256.Sum256([]byte(fmt.Sprint("new ", n, " ", i))))
	}
	return "'{" + strings.Join(quoted, ",") + "}'"
}

// atOnce are arguments of publish_at_once that differ from call to call: what is
// explained runs twice.
const atOnceTypes = "bytea[],bytea[],bigint[],boolean[],bytea[],bytea[],integer[]"

func atOnce(n int) string {
	places := make([]string, n)
	for i := range places {
		places[i] = strconv.Itoa(i + 1)
	}
	const fresh = "uuid_send(gen_random_uuid())"
	return topics(n) + ", ARRAY[" + strings.Repeat(fresh+",", n-1) + fresh + "]," + cursors(n, 0) +
		fmt.Sprintf(", array_fill(false, ARRAY[%d]), array_fill('a'::bytea, ARRAY[%d]),", n, n) + topics(n) + ", '{" + strings.Join(places, ",") + "}'"
}

// A publish probes one index entry a topic or an envelope and scans no table.
func testPlansOfPublish(t *testing.T, conn *pgx.Conn) {
	_, err := conn.Exec(t.Context(), "SELECT setval('envelope_sequence', 3000000)") // above all heads
	require.NoError(t, err)
	t.Run("lineage", func(t *testing.T) {
		// A scan of its one row, which the settings make as dear as anything.
		text, err := os.ReadFile("sql/lineage_recorded.sql")
		require.NoError(t, err)
		var raw []byte
		require.NoError(t, conn.QueryRow(t.Context(), fmt.Sprintf("EXPLAIN (ANALYZE, FORMAT JSON) %s", text)).Scan(&raw))
		require.NotContains(t, string(raw), "JIT")
	})
	for _, c := range []struct {
		name, file, types, arguments string
		// most has how many rows may be touched by each index.
		most map[string]float64
	}{
		{"lock_topics", "publish_lock_topics.sql", "bytea[]", topics(1000), nil},
		{"heads", "publish_heads.sql", "bytea[]", topics(1000), map[string]float64{"topic_heads_pkey": 1000}},
		{"stored", "publish_stored.sql", "bytea[], bytea[]", topics(1000) + "," + hashes(1000), map[string]float64{"envelopes_topic_message_hash_key": 0}},
		{"move_heads", "publish_move_heads.sql", "bytea[], bigint[]", topics(1000) + "," + cursors(1000, 2_000_000), map[string]float64{"topic_heads_pkey": 1000}},
		{"one", "publish_one.sql", "bytea,bytea,bigint,boolean,bytea", fmt.Sprintf(`'\\x%x', uuid_send(gen_random_uuid()), 0, false, 'a'`, group(1)), nil},
		{"at_once_one_row", "publish_at_once.sql", atOnceTypes, atOnce(1), nil},
		{"at_once_many_rows", "publish_at_once.sql", atOnceTypes, atOnce(1000), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, took := explain(t, conn, c.name, c.file, c.types, c.arguments)
			found := map[string]float64{}
			plan.walk(func(n *node) {
				require.NotContains(t, []string{"Seq Scan", "Bitmap Heap Scan", "Hash Join", "Merge Join"}, n.Type)
				if n.Index != "" {
					found[n.Index] += (n.Rows + n.Removed) * n.Loops
				}
			})
			require.Len(t, found, len(c.most), "%v", found)
			for index, rows := range found {
				require.LessOrEqual(t, rows, c.most[index], index)
			}
			t.Logf("%s: %v, %v on the server", c.name, found, took)
		})
	}
}

// Every read is by the intended index whatever the size of the table, touches
// about as many rows as it returns, and sorts nothing but what it returns.
func testPlansOfReads(t *testing.T, conn *pgx.Conn) {
	type indexes []string
	queryTypes := "bytea[],bigint[],bigint,bigint,bigint"
	for _, c := range []struct {
		name, file, types, arguments string
		indexes                      indexes
		// most is how many rows the scans of tables may touch, sorts how many rows
		// all sorts may take together.
		most, sorts float64
	}{
		{"query_one_large_topic", "query.sql", queryTypes, topics(1) + "," + cursors(1, 0) + ", 1000, 1000, 26214400", indexes{"envelopes_pkey"}, 2100, 1001},
		{"query_of_one_topic", "query_one.sql", "bytea,bigint,bigint,bigint", fmt.Sprintf(`'\x%x', 0, 1000, 26214400`, group(1)), indexes{"envelopes_pkey"}, 2100, 1001},
		{"query_thousand_topics", "query.sql", queryTypes, topics(1000) + "," + cursors(1000, 0) + ", 1000, 1, 26214400", indexes{"envelopes_pkey"}, 2100, 1001},
		{"query_thousand_topics_small_page", "query.sql", queryTypes, topics(1000) + "," + cursors(1000, 0) + ", 100, 1, 26214400", indexes{"envelopes_pkey"}, 210, 101},
		{"query_thousand_topics_at_head", "query.sql", queryTypes, topics(1000) + "," + cursors(1000, 1_000_000) + ", 1000, 1, 26214400", indexes{"envelopes_pkey"}, 0, 0},
		{"query_ten_topics_middle", "query.sql", queryTypes, topics(10) + "," + cursors(10, 500_000) + ", 1000, 100, 26214400", indexes{"envelopes_pkey"}, 2100, 1001},
		{"newest_metadata", "newest_meta.sql", "bytea[]", topics(1000), indexes{"envelopes_pkey"}, 1000, 0},
		{"newest_full", "newest_full.sql", "bytea[], bigint", topics(100) + ", 26214400", indexes{"envelopes_pkey"}, 100, 0},
		{"inbox_ids", "inbox.sql", "smallint[], text[]",
			"array_fill(1::smallint, ARRAY[250]), " + identifiers(250),
			indexes{"identifier_associations_active_idx"}, 250, 0},
		{"heads", "heads.sql", "bytea[]", topics(10000), indexes{"topic_heads_pkey"}, 10000, 10000},
		{"page_of_history", "page.sql", "bytea[], bigint[], integer[], bigint", topics(100) + "," + cursors(100, 0) + ", array_fill(10, ARRAY[100]), 1048576", indexes{"envelopes_pkey"}, 1100, 2000},
		{"sweep", "sweep.sql", "bigint,bigint,bigint,bytea,bigint", "50000, 100000, 0, '', 1000", indexes{"envelopes_commit_xid_idx"}, 1300, 1300},
		{"sweep_next_page", "sweep.sql", "bigint,bigint,bigint,bytea,bigint", "50000, 100000, 70000, '\\x00', 1000", indexes{"envelopes_commit_xid_idx"}, 1300, 1300},
		{"hint", "hint.sql", "bigint,bigint", "3, 1000", indexes{"envelopes_commit_xid_idx"}, 1300, 1300},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, took := explain(t, conn, c.name, c.file, c.types, c.arguments)
			used := map[string]bool{}
			touched, sorted := 0.0, 0.0
			plan.walk(func(n *node) {
				require.NotContains(t, []string{"Seq Scan", "Bitmap Heap Scan", "HashAggregate", "Hash Join", "Merge Join"}, n.Type)
				switch {
				case n.Index != "":
					used[n.Index] = true
					touched += (n.Rows + n.Removed) * n.Loops
				case strings.Contains(n.Type, "Sort"):
					sorted += n.Rows * n.Loops
				}
			})
			require.Equal(t, []string(c.indexes), slices.Collect(maps.Keys(used)))
			require.Equal(t, c.most > 0, touched > 0, "the statement finds rows")
			require.LessOrEqual(t, touched, c.most, "rows touched in tables")
			require.LessOrEqual(t, sorted, c.sorts, "rows sorted")
			t.Logf("%s: %d rows touched, %d sorted, %v on the server", c.name, int(touched), int(sorted), took)
		})
	}
}
