package validate_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/validate"
)

const mib = 1 << 20

// log is the log of one inbox.
type log struct {
	entries []store.HistoryEntry
	parts   []int // bytes that were read at a time
	outline func(reads int) []store.HistoryEntry
	reads   int
}

func (l *log) add(t *testing.T, update *associations.IdentityUpdate) {
	t.Helper()
	encoded := encode(t, testkit.Identity(update))
	l.entries = append(l.entries, store.HistoryEntry{
		SequenceID: topic.SequenceID(len(l.entries) + 1), Hash: envelope.HashOf(encoded), Bytes: len(encoded), Payload: encoded,
	})
}

func encode(t *testing.T, e *backendv1.ClientEnvelope) []byte {
	t.Helper()
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	require.NoError(t, err)
	return encoded
}

func (l *log) HistoryOutline(context.Context, topic.Topic) ([]store.HistoryEntry, error) {
	l.reads++
	if l.outline != nil {
		return l.outline(l.reads), nil
	}
	return l.entries, nil
}

func (l *log) History(_ context.Context, _ topic.Topic, above, through topic.SequenceID) ([]store.HistoryEntry, error) {
	var part []store.HistoryEntry
	bytes := 0
	for _, e := range l.entries {
		if e.SequenceID > above && e.SequenceID <= through {
			part = append(part, e)
			bytes += e.Bytes
		}
	}
	l.parts = append(l.parts, bytes)
	return part, nil
}

// owner is an inbox with its log.
type owner struct {
	*kit.Wallet
	inbox   string
	seconds uint64
	log
}

func newOwner(t *testing.T) *owner {
	t.Helper()
	o := &owner{Wallet: kit.NewWallet(t.Name())}
	o.inbox = kit.InboxID(o.Wallet, 0)
	o.add(t, kit.Register(o.Wallet, 0, kit.NewInstallation("phone"), 1))
	return o
}

func (o *owner) next() *kit.Builder {
	o.seconds++
	return kit.NewUpdate(o.inbox, (100+o.seconds)*1_000_000_000)
}

// filled is an update of the owner with so much free text that it has a length.
func (o *owner) filled(t *testing.T, length int) *associations.IdentityUpdate {
	t.Helper()
	update := o.next().Add(o, kit.NewInstallation(t.Name()+string(rune(o.seconds)))).Update()
	add := update.GetActions()[0].GetAdd()
	add.RelyingParty = proto.String("")
	for range 4 { // lengths of lengths
		size := len(encode(t, testkit.Identity(update)))
		add.RelyingParty = proto.String(strings.Repeat("x", len(add.GetRelyingParty())+length-size))
	}
	require.Len(t, encode(t, testkit.Identity(update)), length)
	return update
}

// validator has the budgets that it shares.
func (o *owner) validator(contracts association.ContractVerifier, chainTimeout time.Duration) *validate.Validator {
	return validate.New(validate.Deps{
		Histories: o, Contracts: contracts, Clock: time.Now, Limits: limit.Default(), ChainTimeout: chainTimeout, Budgets: validate.NewBudgets(limit.Default()),
	})
}

func requestOf(t *testing.T, v *validate.Validator, updates ...*associations.IdentityUpdate) *request.Request {
	t.Helper()
	publish := &backendv1.PublishRequest{}
	for _, update := range updates {
		publish.Envelopes = append(publish.Envelopes, testkit.Identity(update))
	}
	wire, err := proto.Marshal(publish)
	require.NoError(t, err)
	r, failed, err := request.Parse(t.Context(), wire, limit.Default(), v.Budgets.Decoding)
	require.NoError(t, err)
	require.Nil(t, failed)
	return r
}

// verdict validates one update and leaves the budgets as they were.
func (o *owner) verdict(t *testing.T, v *validate.Validator, update *associations.IdentityUpdate) *request.Envelope {
	t.Helper()
	r := requestOf(t, v, update)
	require.NoError(t, v.Validate(t.Context(), r))
	require.Zero(t, v.Budgets.Decoding.Used())
	require.Zero(t, v.Budgets.Histories.Used())
	return &r.Envelopes[0]
}

func requireTooLarge(t *testing.T, e *request.Envelope, want bool) {
	t.Helper()
	if !want {
		require.Nil(t, e.Failure)
		return
	}
	require.NotNil(t, e.Failure)
	require.Equal(t, fault.TooLarge, e.Failure.Reason)
}

func TestAnUpdateHasALimit(t *testing.T) {
	o := newOwner(t)
	v := o.validator(nil, time.Second)
	requireTooLarge(t, o.verdict(t, v, o.filled(t, validate.MaxUpdateBytes)), false)
	requireTooLarge(t, o.verdict(t, v, o.filled(t, validate.MaxUpdateBytes+1)), true)
}

// A log that is full takes what its owner needs to revoke, and nothing longer.
func TestALogHasALimit(t *testing.T) {
	o := newOwner(t)
	v := o.validator(nil, time.Second)
	used := o.entries[0].Bytes
	for ; used+validate.MaxUpdateBytes <= validate.MaxLogBytes-validate.MaxUpdateBytes/2; used += validate.MaxUpdateBytes {
		o.add(t, o.filled(t, validate.MaxUpdateBytes))
	}
	rest := validate.MaxLogBytes - used
	requireTooLarge(t, o.verdict(t, v, o.filled(t, rest)), false)
	requireTooLarge(t, o.verdict(t, v, o.filled(t, rest+1)), true)
	o.add(t, o.filled(t, rest))
	requireTooLarge(t, o.verdict(t, v, o.filled(t, validate.OwnersBytes)), false)
	requireTooLarge(t, o.verdict(t, v, o.filled(t, validate.OwnersBytes+1)), true)
	requireTooLarge(t, o.verdict(t, v, o.next().Revoke(o, kit.NewInstallation("phone").Member()).Update()), false)
}

// A log that older limits let grow to many megabytes replays, a part at a time.
func TestALongLogIsReadInParts(t *testing.T) {
	o := newOwner(t)
	v := o.validator(nil, time.Second)
	for range 40 {
		o.add(t, o.filled(t, mib))
	}
	e := o.verdict(t, v, o.next().Revoke(o, kit.NewInstallation("phone").Member()).Update())
	require.Nil(t, e.Failure)
	require.Equal(t, topic.SequenceID(41), e.Update.Version)
	all := 0
	for _, part := range o.parts {
		require.LessOrEqual(t, part, 4*mib)
		all += part
	}
	require.Greater(t, all, 40*mib)
}

// A database that is another than the one of the outline gives no verdict.
func TestAHistoryThatChangedIsNoVerdict(t *testing.T) {
	for name, change := range map[string]func(*owner){
		"an update less":  func(o *owner) { o.entries = o.entries[:1] },
		"another update":  func(o *owner) { o.entries[1].Hash[0]++ },
		"another place":   func(o *owner) { o.entries[1].SequenceID++ },
		"nothing of that": func(o *owner) { o.entries = nil },
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(t)
			o.add(t, o.filled(t, 1000))
			before := append([]store.HistoryEntry(nil), o.entries...)
			o.outline = func(int) []store.HistoryEntry { return before }
			change(o)
			e := o.verdict(t, o.validator(nil, time.Second), o.filled(t, 1000))
			require.NotNil(t, e.Failure)
			require.Equal(t, fault.Unavailable, e.Failure.Kind)
		})
	}
}

// While chains are asked nothing is held that others wait for (A3, A6).
func TestASlowChainHoldsNothing(t *testing.T) {
	o := newOwner(t)
	var v *validate.Validator
	asked := false
	v = o.validator(kit.VerifierFunc(func(context.Context, association.ContractSignature) (bool, error) {
		asked = true
		require.Zero(t, v.Budgets.Decoding.Used())
		require.Zero(t, v.Budgets.Histories.Used())
		return true, nil
	}), time.Second)
	e := o.verdict(t, v, o.next().Add(o, kit.NewContractWallet("safe", "eip155:1", 7)).Update())
	require.Nil(t, e.Failure)
	require.True(t, asked)
}

// What the inbox has become while the chain was asked counts.
func TestTheInboxAfterTheChainCounts(t *testing.T) {
	o := newOwner(t)
	update := o.next().Add(o, kit.NewContractWallet("safe", "eip155:1", 7)).Update()
	v := o.validator(kit.VerifierFunc(func(context.Context, association.ContractSignature) (bool, error) {
		o.add(t, o.filled(t, 1000))
		return true, nil
	}), time.Second)
	require.Equal(t, topic.SequenceID(2), o.verdict(t, v, update).Update.Version)

	v = o.validator(kit.VerifierFunc(func(context.Context, association.ContractSignature) (bool, error) {
		o.add(t, update)
		return true, nil
	}), time.Second)
	e := o.verdict(t, v, update)
	require.Nil(t, e.Failure)
	require.Nil(t, e.Update, "it was stored meanwhile")
}

// Chains that say nothing are unavailable, however many a request asks, and after one
// time-out in all.
//
// Proves IDENT-061.
func TestSilentChainsAreUnavailable(t *testing.T) {
	o := newOwner(t)
	updates := make([]*associations.IdentityUpdate, 5)
	for i := range updates {
		safe := kit.NewContractWallet(t.Name()+string(rune('a'+i)), "eip155:1", 7)
		updates[i] = kit.Register(safe, 0, kit.NewInstallation("phone"), 1)
	}
	o.outline = func(int) []store.HistoryEntry { return nil }
	synctest.Test(t, func(t *testing.T) {
		v := o.validator(kit.VerifierFunc(func(ctx context.Context, _ association.ContractSignature) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}), 20*time.Second)
		r := requestOf(t, v, updates...)
		begun := time.Now()
		require.NoError(t, v.Validate(t.Context(), r))
		require.Equal(t, 20*time.Second, time.Since(begun))
		for i := range r.Envelopes {
			require.Equal(t, fault.Unavailable, r.Envelopes[i].Failure.Kind)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, fault.Late, fault.KindOf(v.Validate(ctx, requestOf(t, v, updates...))), "the caller's own limit")
	})
}

// With no memory left the answer is not a verdict, and not a late one.
func TestWithoutMemoryThereIsNoVerdict(t *testing.T) {
	o := newOwner(t)
	for range 20 {
		o.add(t, o.filled(t, mib))
	}
	v := o.validator(nil, time.Second)
	r := requestOf(t, v, o.next().Revoke(o, kit.NewInstallation("phone").Member()).Update())
	full := v.Budgets.Histories.Holder()
	full.Charge(v.Budgets.Histories.Total())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.NoError(t, v.Validate(ctx, r))
	require.Equal(t, fault.Unavailable, r.Envelopes[0].Failure.Kind)
	full.Give(v.Budgets.Histories.Total())
	require.NoError(t, v.Validate(t.Context(), r))
	require.Zero(t, v.Budgets.Histories.Used())
}
