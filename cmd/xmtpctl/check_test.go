package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal/pgtest"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, config.Secret(url))
	return err
}

// insert writes updates as an older backend stored them.
func insert(t *testing.T, url string, updates ...*associations.IdentityUpdate) {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, connection.Close(context.Background())) }()
	for _, update := range updates {
		payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(testkit.Identity(update))
		require.NoError(t, err)
		inbox, err := hex.DecodeString(update.GetInboxId())
		require.NoError(t, err)
		hash := sha256.Sum256(payload)
		_, err = connection.Exec(t.Context(), `WITH row AS (
			INSERT INTO envelopes (topic, sequence_id, server_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
			VALUES ($1, nextval('envelope_sequence'), 1, $2, false, pg_current_xact_id()::text::bigint, $3) RETURNING topic, sequence_id)
			INSERT INTO topic_heads SELECT topic, sequence_id FROM row
			ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id`, append([]byte{2}, inbox...), hash[:], payload)
		require.NoError(t, err)
	}
}

func TestCheckIdentityListsInboxesThatClientsRefuse(t *testing.T) {
	url := pgtest.MigratedPrimary(t, migrate).PrimaryURL
	good := kit.History("good, and long", 40)
	for i := range uint64(1001) { // more than are read at once
		wallet := kit.NewWallet("good")
		good = append(good, kit.NewUpdate(kit.InboxID(wallet, i), 1).Create(wallet, i).Update())
	}
	insert(t, url, good...)
	out, err := xmtpctl(t, "check", "identity", "--primary-url", url)
	require.NoError(t, err)
	require.Equal(t, "1002 inboxes checked, clients refuse 0 of them\n", out)

	wallet, legacyWallet := kit.NewWallet("bad"), kit.NewWallet("legacy")
	inbox, legacyInbox := kit.InboxID(wallet, 0), kit.InboxID(legacyWallet, 0)
	phone := kit.NewInstallation("phone")
	insert(t, url,
		kit.Register(wallet, 0, phone, 1),
		kit.NewUpdate(inbox, 2).Add(wallet, kit.NewWallet("another")).Update(),
		kit.NewUpdate(inbox, 3).Update(), // no actions
		kit.NewUpdate(inbox, 4).Add(wallet, phone).Update(),
		kit.NewUpdate(legacyInbox, 1).Create(kit.Legacy{Signer: legacyWallet}, 0).Update(),
	)
	out, err = xmtpctl(t, "check", "identity", "--primary-url", url)
	require.ErrorContains(t, err, "clients refuse the logs of 2 inboxes")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.ElementsMatch(t, []string{
		inbox + "  update 3, sequence id 1044: the update has no actions, expected at least one",
		legacyInbox + "  update 1, sequence id 1046: action 0 has no initial identifier signature of a known kind",
		"1004 inboxes checked, clients refuse 2 of them",
	}, lines)

	t.Setenv("XMTP_PRIMARY_URL", url)
	out, err = xmtpctl(t, "check", "identity", "--json")
	require.Error(t, err)
	var found []map[string]any
	for line := range strings.Lines(out) {
		var one map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &one))
		found = append(found, one)
	}
	require.Len(t, found, 3)
	require.Equal(t, map[string]any{"inboxes": 1004.0, "refused": 2.0}, found[2])
	require.ElementsMatch(t, []any{inbox, legacyInbox}, []any{found[0]["inbox_id"], found[1]["inbox_id"]})
	require.Contains(t, found[0], "problem")

	// It cannot write, and says nothing of a password.
	out, err = xmtpctl(t, "check", "identity", "--help")
	require.NoError(t, err)
	require.NotContains(t, out, url)
	require.Contains(t, out, "--primary-url")
}

func TestCheckIdentityWithoutADatabase(t *testing.T) {
	t.Setenv("XMTP_PRIMARY_URL", "")
	for arguments, want := range map[string]string{
		"check":          "what to check is missing",
		"check nonsense": "unknown command",
		"check identity": "the database is missing, expected --primary-url or XMTP_PRIMARY_URL",
		"check identity --primary-url postgres://user:secret@127.0.0.1:1/x":    "connect to the database",
		"check identity --primary-url postgres://user:secret@127.0.0.1:port/x": "the URL of the database cannot be read",
		"check identity --primary-url " + pgtest.Database(t):                   "count the inboxes",
		"check identity more": "unknown command",
	} {
		_, err := xmtpctl(t, strings.Fields(arguments)...)
		require.ErrorContains(t, err, want, arguments)
		require.NotContains(t, fmt.Sprint(err), "secret")
	}
}
