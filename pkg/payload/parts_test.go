package payload_test

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/payload"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

func field(number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
}

var inboxID = field(3, []byte(strings.Repeat("ab", 32)))

// updateOf is an identity update of so many copies of an action, in an envelope.
func updateOf(action []byte, n int) []byte {
	return field(4, append(bytes.Repeat(field(1, action), n), inboxID...))
}

// allocated is how many bytes do takes from the heap.
func allocated(do func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// A megabyte of actions that say nothing is refused before anything is built (A2).
func TestMessagesWithoutContentAreRefusedUnbuilt(t *testing.T) {
	welcome := func(inner []byte) []byte { return field(2, inner) }
	cases := map[string]struct {
		raw  []byte
		want fault.Reason
	}{
		"empty actions":                  {updateOf(nil, maxBytes/2-100), fault.InvalidIdentityUpdate},
		"actions of an empty kind":       {updateOf(field(2, nil), maxBytes/4-100), fault.InvalidIdentityUpdate},
		"one action of two kinds":        {updateOf(bytes.Repeat(append(field(1, nil), field(2, nil)...), maxBytes/4-100), 1), fault.InvalidIdentityUpdate},
		"one signature of two kinds":     {updateOf(field(3, field(2, bytes.Repeat(append(field(1, nil), field(2, nil)...), maxBytes/4-100))), 1), fault.InvalidIdentityUpdate},
		"a welcome of two versions":      {welcome(bytes.Repeat(append(field(1, nil), field(2, nil)...), maxBytes/4-100)), fault.MalformedPayload},
		"many empty welcomes":            {bytes.Repeat(welcome(nil), maxBytes/2), fault.MalformedPayload},
		"many empty group messages":      {bytes.Repeat(field(1, nil), maxBytes/2), fault.MalformedPayload},
		"many empty key packages":        {bytes.Repeat(field(3, nil), maxBytes/2), fault.MalformedPayload},
		"many empty commit-log entries":  {bytes.Repeat(field(5, nil), maxBytes/2), fault.MalformedPayload},
		"many signatures of one entry":   {field(5, bytes.Repeat(field(2, nil), maxBytes/2-100)), fault.MalformedPayload},
		"more than an envelope can have": {updateOf(nil, 12<<20), fault.InvalidIdentityUpdate},
	}
	_, err := payload.Parse(updateOf(field(2, nil), 1), maxBytes) // what is made once
	require.NoError(t, err)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var err error
			taken := allocated(func() { _, err = payload.Parse(c.raw, maxBytes) })
			require.Error(t, err)
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			require.Equal(t, c.want, fault.Of(err).Reason, err)
			require.Less(t, taken, int64(64<<10))
		})
	}
}

// One message for each twelve bytes, and a thousand.
func TestMessagesOfAnEnvelopeAreCounted(t *testing.T) {
	fits := func(n, filler int) bool {
		update := &associations.IdentityUpdate{InboxId: strings.Repeat("ab", 32), Actions: []*associations.IdentityAction{
			{Kind: &associations.IdentityAction_CreateInbox{CreateInbox: &associations.CreateInbox{InitialIdentifier: strings.Repeat("x", filler)}}}}}
		for range n - 4 { // beside the envelope, the update, an action and its kind
			update.Actions = append(update.Actions, &associations.IdentityAction{})
		}
		raw, err := proto.Marshal(&backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_IdentityUpdate{IdentityUpdate: update}})
		require.NoError(t, err)
		_, err = payload.Parse(raw, maxBytes)
		require.Equal(t, n <= len(raw)/12+1000, err == nil, "%d messages in %d bytes: %v", n, len(raw), err)
		return err == nil
	}
	for _, filler := range []int{0, 1, 5000, 100_000} {
		n := 4
		for fits(n+100, filler) {
			n += 100
		}
		for fits(n+1, filler) {
			n++
		}
		require.Greater(t, n, 1000)
	}
}

// What decoding takes is what the budget is charged, whatever the shape.
func TestTheWeightOfADecodingIsWhatItTakes(t *testing.T) {
	short := field(3, append(field(1, field(1, nil)), field(2, field(1, field(1, make([]byte, 65))))...)) // the shortest there can be
	passkey := field(2, append(field(1, field(3, nil)), field(3, field(5, append(field(1, make([]byte, 33)), field(2, make([]byte, 64))...)))...))
	legacy := field(1, field(3, field(4, append(field(1, append(field(1, make([]byte, 4)), field(2, field(1, field(1, make([]byte, 64))))...)), field(2, field(1, make([]byte, 65)))...))))
	filled := field(2, field(4, []byte("relying.part.y.com"))) // 24 bytes, and two messages
	for name, raw := range map[string][]byte{
		"removals":          updateOf(short, 12_000),
		"passkeys":          updateOf(passkey, 7_000),
		"legacy":            updateOf(legacy, 5_000),
		"messages at limit": updateOf(filled, 43_000),
		"one long text":     updateOf(field(1, field(5, bytes.Repeat([]byte("x"), 1_000_000))), 1),
	} {
		t.Run(name, func(t *testing.T) {
			require.LessOrEqual(t, len(raw), maxBytes)
			var decoded backendv1.ClientEnvelope
			taken := allocated(func() { require.NoError(t, proto.Unmarshal(raw, &decoded)) })
			weight := payload.Weight(raw)
			t.Logf("%d bytes take %d, reckoned %d", len(raw), taken, weight)
			require.Less(t, float64(taken), 1.25*float64(weight))
			require.Less(t, weight, int64(10<<20))
		})
	}
}

// A retired kind of signature is an unknown field beside another, wherever it stands,
// and what it was where it is alone: then it may be a stored one.
func TestARetiredSignatureBesideAnother(t *testing.T) {
	wallet, retired := field(1, field(1, make([]byte, 65))), field(4, field(2, field(1, make([]byte, 65))))
	add := func(existing, added []byte) []byte {
		return updateOf(field(2, append(append(append(field(1, field(2, make([]byte, 32))), field(2, existing)...), field(3, added)...), field(4, []byte("x"))...)), 2)
	}
	plain, err := payload.Parse(add(wallet, wallet), maxBytes)
	require.NoError(t, err)
	for name, beside := range map[string][]byte{
		"behind": append(bytes.Clone(wallet), retired...), "before": append(bytes.Clone(retired), wallet...),
		"both": append(append(bytes.Clone(retired), wallet...), retired...),
	} {
		parsed, err := payload.Parse(add(wallet, beside), maxBytes)
		require.NoError(t, err, name)
		require.Equal(t, plain.Canonical, parsed.Canonical, name)
	}
	alone, err := payload.Parse(add(wallet, retired), maxBytes)
	require.NoError(t, err)
	require.NotEqual(t, plain.Canonical, alone.Canonical)
	update, err := alone.IdentityUpdate()
	require.NoError(t, err)
	require.NotNil(t, update.GetActions()[1].GetAdd().GetNewMemberSignature().GetDelegatedErc_191())
}

func TestDecodingsShareABudget(t *testing.T) {
	raw := updateOf(field(1, field(1, []byte("0x"))), 100)
	decoding := budget.New(1<<20, 0)
	_, err := payload.ParseWithin(t.Context(), raw, maxBytes, decoding.Holder())
	require.NoError(t, err)
	require.Zero(t, decoding.Used())

	full := decoding.Holder()
	full.Charge(1 << 20)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := payload.ParseWithin(ctx, raw, maxBytes, decoding.Holder())
		ended <- err
	}()
	cancel()
	require.Equal(t, fault.Unavailable, fault.KindOf(<-ended))
	full.Give(1 << 20)
	require.Zero(t, decoding.Used())

	// What could never be decoded does not wait.
	_, err = payload.ParseWithin(t.Context(), updateOf(field(1, field(5, make([]byte, 1<<20))), 1), maxBytes, decoding.Holder())
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
}
