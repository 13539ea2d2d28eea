package judge_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/judge"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

var rules = judge.Rules{Limits: limit.Default(), Retention: limit.DefaultRetention()}

func parse(t *testing.T, envelopes ...*backendv1.ClientEnvelope) *request.Request {
	t.Helper()
	encoded, err := proto.Marshal(&backendv1.PublishRequest{Envelopes: envelopes})
	require.NoError(t, err)
	r, failed, err := request.Parse(t.Context(), encoded, rules.Limits, budget.New(64<<20, 0))
	require.NoError(t, err)
	require.Nil(t, failed)
	return r
}

// locked is what a transaction finds on empty topics; ids start at 101.
func locked(batch store.Batch) store.Locked {
	l := store.Locked{ServerNS: 1000, Heads: make([]topic.SequenceID, len(batch.Topics)), Stored: map[int]envelope.Meta{}}
	for i := range batch.Keys {
		l.IDs = append(l.IDs, topic.SequenceID(101+i))
	}
	return l
}

func ids(r *request.Request) (all []int64) {
	for i := range r.Metas {
		all = append(all, int64(r.Metas[i].SequenceID))
	}
	return all
}

func TestRequestsOfAGroupSeeEachOther(t *testing.T) {
	kit := testkit.New(1)
	group := kit.Group()
	a, b, c := kit.GroupMessage(group, 1), kit.GroupMessage(group, 1), kit.GroupMessage(group, 1)
	first, second := parse(t, a, b), parse(t, b, c, a)
	g := judge.NewGroup(rules, []*request.Request{first, second})
	batch := g.Batch()
	require.Len(t, batch.Topics, 1)
	require.Len(t, batch.Keys, 3)
	found := locked(batch)
	found.Heads[0] = 50
	writes, notices, err := g.Judge(found)
	require.NoError(t, err)
	require.Equal(t, []int64{101, 102}, ids(first))
	require.Equal(t, []int64{102, 103, 101}, ids(second))
	require.Equal(t, 2, first.Stored)
	require.Equal(t, 1, second.Stored)
	require.Len(t, writes.Rows, 3)
	require.Equal(t, []topic.SequenceID{103}, writes.Heads)
	for i, previous := range []topic.SequenceID{50, 101, 102} {
		require.Equal(t, previous, notices[i].Previous)
	}
}

func TestAFailedRequestContributesNothing(t *testing.T) {
	kit := testkit.New(2)
	group := kit.Group()
	shared := kit.GroupMessage(group, 1)
	bad, good := parse(t, shared, kit.GroupMessage(group, 1)), parse(t, shared)
	bad.Envelopes[1].Failure = fault.Invalidf(fault.InvalidKeyPackage, "bad")
	g := judge.NewGroup(rules, []*request.Request{bad, good})
	writes, notices, err := g.Judge(locked(g.Batch()))
	require.NoError(t, err)
	require.Equal(t, 1, fault.Of(bad.Err).Index)
	require.NoError(t, good.Err)
	require.Len(t, writes.Rows, 1)
	require.Len(t, notices, 1)
	require.Zero(t, notices[0].Previous)
}

func TestStoredCopiesSucceedWhateverValidationSaid(t *testing.T) {
	kit := testkit.New(3)
	r := parse(t, kit.GroupMessage(kit.Group(), 1), kit.GroupMessage(kit.Group(), 1))
	r.Envelopes[0].Failure = fault.Invalidf(fault.InvalidKeyPackage, "bad")
	r.Envelopes[0].Update = &request.Update{Version: 7}
	g := judge.NewGroup(rules, []*request.Request{r})
	found := locked(g.Batch())
	found.Stored[0] = envelope.Meta{SequenceID: 9}
	writes, _, err := g.Judge(found)
	require.NoError(t, err)
	require.NoError(t, r.Err)
	require.Equal(t, []int64{9, 101}, ids(r))
	require.Len(t, writes.Rows, 1)
}

func TestAMovedHeadGoesBeforeOtherFailures(t *testing.T) {
	kit := testkit.New(4)
	client, now := kit.Client(), time.Now()
	first, second := parse(t, client.Registration(now)), parse(t, kit.GroupMessage(kit.Group(), 1), client.Registration(now.Add(time.Hour)))
	first.Envelopes[0].Update = &request.Update{Added: []store.Association{{Identifier: "a"}}}
	second.Envelopes[1].Update = &request.Update{Added: []store.Association{{Identifier: "b"}}}
	second.Envelopes[0].Failure = fault.Invalidf(fault.InvalidKeyPackage, "bad")
	g := judge.NewGroup(rules, []*request.Request{first, second})
	require.True(t, g.Batch().Identity)
	writes, _, err := g.Judge(locked(g.Batch()))
	require.NoError(t, err)
	require.NoError(t, first.Err)
	require.Equal(t, fault.HeadMoved, fault.KindOf(second.Err))
	require.Equal(t, []store.Association{{Identifier: "a", SequenceID: 101}}, writes.Added)
}

func TestExpiryByKind(t *testing.T) {
	kit := testkit.New(5)
	client, group := kit.Client(), kit.Group()
	short := rules
	short.Retention = limit.Retention{GroupMessage: time.Second, Welcome: 2 * time.Second, KeyPackage: 3 * time.Second}
	r := parse(t, kit.GroupMessage(group, 1), kit.Commit(group, 1), kit.Proposal(group, 1),
		kit.Welcome(client.Installation.PublicKey(), 1), client.KeyPackage(time.Now()), client.Registration(time.Now()),
		kit.CommitLogEntry(group, 1, 1))
	g := judge.NewGroup(short, []*request.Request{r})
	_, _, err := g.Judge(locked(g.Batch()))
	require.NoError(t, err)
	for i, want := range []time.Duration{time.Second, 0, 0, 2 * time.Second, 3 * time.Second, 0, 0} {
		if want != 0 {
			want += 1000
		}
		require.EqualValues(t, want, r.Metas[i].ExpiryNS, "envelope %d", i)
	}
}

func TestWhatMustNotHappenFailsTheWhole(t *testing.T) {
	for name, change := range map[string]func(*store.Locked){
		"an id at the head":         func(l *store.Locked) { l.Heads[0] = 101 },
		"an expiry beyond all time": func(l *store.Locked) { l.ServerNS = math.MaxInt64 - 1 },
	} {
		t.Run(name, func(t *testing.T) {
			kit := testkit.New(6)
			r := parse(t, kit.GroupMessage(kit.Group(), 1))
			g := judge.NewGroup(rules, []*request.Request{r})
			found := locked(g.Batch())
			change(&found)
			_, _, err := g.Judge(found)
			require.Equal(t, fault.Broken, fault.KindOf(err))
		})
	}
}

// A group that nothing can refuse says what to store; what is committed at once is
// told to its requests like the outcome of any other transaction.
func TestAGroupThatNothingCanRefuseIsDrafted(t *testing.T) {
	kit := testkit.New(8)
	group := kit.Group()
	a, b, commit := kit.GroupMessage(group, 1), kit.GroupMessage(group, 2), kit.Commit(group, 1)
	first, second := parse(t, a, b), parse(t, b, commit, a)
	g := judge.NewGroup(rules, []*request.Request{first, second})
	batch := g.Batch()
	require.Len(t, batch.Drafts, 3)
	for i, e := range []*backendv1.ClientEnvelope{a, b, commit} {
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		require.NoError(t, err)
		draft := store.Draft{Payload: encoded, Retention: rules.Retention.GroupMessage}
		if e == commit {
			draft.Retention, draft.IsCommitOrProposal = 0, true
		}
		require.Equal(t, draft, batch.Drafts[i])
	}
	found := locked(batch)
	found.Heads[0], found.Committed, found.Stored = 50, true, nil
	writes, notices, err := g.Judge(found)
	require.NoError(t, err)
	require.Equal(t, []int64{101, 102}, ids(first))
	require.Equal(t, []int64{102, 103, 101}, ids(second))
	require.Equal(t, []int{2, 1}, []int{first.Stored, second.Stored})
	for i, previous := range []topic.SequenceID{50, 101, 102} {
		require.Equal(t, previous, notices[i].Previous)
		// What the statement stored is what the judge would have.
		draft, meta := batch.Drafts[i], writes.Rows[i].Meta
		require.Equal(t, draft.Payload, writes.Rows[i].Payload)
		require.Equal(t, draft.IsCommitOrProposal, meta.IsCommitOrProposal)
		if draft.Retention > 0 {
			require.Equal(t, found.ServerNS+draft.Retention.Nanoseconds(), meta.ExpiryNS)
		} else {
			require.Zero(t, meta.ExpiryNS)
		}
	}
}

func TestAGroupThatMayBeRefusedIsNotDrafted(t *testing.T) {
	kit := testkit.New(9)
	group := kit.Group()
	message := func() *backendv1.ClientEnvelope { return kit.GroupMessage(group, 10) }
	draftsOf := func(r judge.Rules, requests ...*request.Request) []store.Draft {
		return judge.NewGroup(r, requests).Batch().Drafts
	}
	require.Len(t, draftsOf(rules, parse(t, message())), 1)

	failed := parse(t, message())
	failed.Envelopes[0].Failure = fault.Invalidf(fault.InvalidKeyPackage, "bad")
	require.Nil(t, draftsOf(rules, parse(t, message()), failed), "one fails unless it is stored")

	require.Nil(t, draftsOf(rules, parse(t, kit.Client().Registration(time.Now()))), "an identity update depends on its inbox")

	tight, one := rules, parse(t, message())
	longest := envelope.Meta{Topic: group.Topic(), SequenceID: math.MaxInt64, ServerNS: math.MaxInt64, ExpiryNS: math.MaxInt64, IsCommitOrProposal: true}
	tight.Limits.MaxResponseBytes = uint64(len(envelope.AppendMetaField(nil, 1, &longest)))
	require.NotNil(t, draftsOf(tight, one))
	tight.Limits.MaxResponseBytes--
	require.Nil(t, draftsOf(tight, one), "the response may be too long")

	large := func(size int) *request.Request {
		r := parse(t, kit.GroupMessage(group, size))
		r.Bytes = size
		return r
	}
	require.NotNil(t, draftsOf(rules, large(1<<19), large(1<<19)))
	require.Nil(t, draftsOf(rules, large(1<<19), large(1<<19+1)), "much would be written in vain")
}

// The ids of a request whose response would be too long are there for the next
// one: three copies of one request have one id between them.
func TestARequestWithTooLongAResponseTakesNoIds(t *testing.T) {
	kit := testkit.New(10)
	message := kit.GroupMessage(kit.Group(), 1)
	long := func() *request.Request { return parse(t, message, message, message) }
	first, second, third, short := long(), long(), long(), parse(t, message)
	narrow := rules
	narrow.Limits.MaxResponseBytes = 200 // one entry has about 90
	g := judge.NewGroup(narrow, []*request.Request{first, second, third, short})
	require.Len(t, g.Batch().Keys, 1)
	writes, notices, err := g.Judge(locked(g.Batch()))
	require.NoError(t, err)
	for _, r := range []*request.Request{first, second, third} {
		require.Equal(t, fault.TooLong, fault.KindOf(r.Err))
	}
	require.NoError(t, short.Err)
	require.Equal(t, []int64{101}, ids(short))
	require.Len(t, writes.Rows, 1)
	require.Len(t, notices, 1)
}
