package publisher_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/metertest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

// hostile is a request with one identity update of a megabyte of empty actions.
func hostile() []byte {
	bytesField := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	update := append(bytes.Repeat([]byte{0x0a, 0}, 1<<19-100), bytesField(3, bytes.Repeat([]byte("ab"), 32))...)
	return bytesField(1, bytesField(4, update))
}

// A hundred and fifty at once cost little more than their own bytes (A2): nothing is
// built of them. Each took 58 MiB when it was.
func TestHostileUpdatesCostLittleMemory(t *testing.T) {
	r := start(t)
	request := hostile()
	const calls = 150
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var callers sync.WaitGroup
	refusals := make([]error, calls)
	for i := range refusals {
		callers.Go(func() { _, refusals[i] = r.raw(request) })
	}
	callers.Wait()
	runtime.ReadMemStats(&after)
	for _, err := range refusals {
		requireRefused(t, err, codes.InvalidArgument, badUpdate, 0)
	}
	each := int64(after.TotalAlloc-before.TotalAlloc) / calls
	t.Logf("%d bytes of the heap for each call of %d bytes, client included", each, len(request))
	require.Less(t, each, int64(12*len(request)))
	require.Zero(t, r.rows())
	r.publish(testkit.New(45).Client().Registration(time.Now()))
}

// A log that older limits let grow, of updates that are mostly free text, is extended
// by its owner, and takes a part of its length of memory at a time (A6).
func TestALongLogOfOlderLimitsIsExtended(t *testing.T) {
	meter := metertest.New(t)
	r := start(t, func(_ *publisher.Config, d *publisher.Deps) { d.Metrics = meter.Metrics })
	client := testkit.New(46).Client()
	now := time.Now()
	old := []*backendv1.ClientEnvelope{client.Registration(now)}
	for i := range 40 {
		update, _ := client.AddInstallation(now.Add(time.Duration(i) * time.Second))
		update.GetIdentityUpdate().GetActions()[0].GetAdd().RelyingParty = proto.String(strings.Repeat("x", 1_000_000))
		old = append(old, update)
	}
	r.insert(client.Topic(), old...)
	r.publish(testkit.Identity(associationtest.NewUpdate(client.InboxID, uint64(now.UnixNano())).Revoke(client.Wallet, client.Installation.Member()).Update()))
	require.Zero(t, meter.Gauge("xmtp_budget_used_bytes", attribute.String("budget", "histories")))
	require.Zero(t, meter.Gauge("xmtp_budget_used_bytes", attribute.String("budget", "decoding")))
	require.NotZero(t, meter.Gauge("xmtp_budget_total_bytes", attribute.String("budget", "histories")))
}

// insert writes envelopes of one topic into the database as an older backend stored them.
func (r *role) insert(name topic.Topic, envelopes ...*backendv1.ClientEnvelope) {
	r.t.Helper()
	for _, e := range envelopes {
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		require.NoError(r.t, err)
		hash := sha256.Sum256(encoded)
		_, err = r.db.Exec(r.t.Context(), `WITH row AS (
			INSERT INTO envelopes (topic, sequence_id, server_ns, message_hash, is_commit_or_proposal, commit_xid, payload)
			VALUES ($1, nextval('envelope_sequence'), 1, $2, false, pg_current_xact_id()::text::bigint, $3) RETURNING topic, sequence_id)
			INSERT INTO topic_heads SELECT topic, sequence_id FROM row
			ON CONFLICT (topic) DO UPDATE SET last_sequence_id = excluded.last_sequence_id`, []byte(name), hash[:], encoded)
		require.NoError(r.t, err)
	}
}

// A chain that is slow, within what it is allowed, is waited for, beside the time that
// a publish has; one that says nothing is unavailable, not the caller late (B8).
func TestTheTimeOfChainsIsTheirOwn(t *testing.T) {
	t.Parallel()
	const slow = 6 * time.Second // more than a publish without chains may take
	chain := func(answer func(http.ResponseWriter, *http.Request, json.RawMessage)) option {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var request struct {
				ID     json.RawMessage `json:"id"`
				Method string          `json:"method"`
			}
			body, _ := io.ReadAll(r.Body) // or the server does not notice that the caller went
			_ = json.Unmarshal(body, &request)
			answer(w, r, request.ID)
		}))
		t.Cleanup(server.Close)
		return func(c *publisher.Config, _ *publisher.Deps) {
			assert.NoError(t, c.Wallet.Chains.UnmarshalText([]byte("eip155:1="+server.URL)))
			c.Wallet.MaxBlockAge = 0
		}
	}
	update := func(name string) *associationtest.Builder {
		safe := associationtest.NewContractWallet(name, "eip155:1", 7)
		return associationtest.NewUpdate(associationtest.InboxID(safe, 0), 1).Create(safe, 0)
	}
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		r := start(t, chain(func(w http.ResponseWriter, r *http.Request, id json.RawMessage) {
			select {
			case <-time.After(slow):
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":"0x01"}`, id)
			case <-r.Context().Done():
			}
		}), func(c *publisher.Config, _ *publisher.Deps) { c.Wallet.Timeout = time.Minute })
		_, err := r.try(testkit.Identity(update("slow").Update()))
		require.NoError(t, err)
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		r := start(t, chain(func(_ http.ResponseWriter, r *http.Request, _ json.RawMessage) { <-r.Context().Done() }),
			func(c *publisher.Config, _ *publisher.Deps) { c.Wallet.Timeout = slow })
		_, err := r.try(testkit.Identity(update("silent").Update()))
		requireRefused(t, err, codes.Unavailable, unspecified, 0)
		require.Zero(t, r.rows())
	})
}
