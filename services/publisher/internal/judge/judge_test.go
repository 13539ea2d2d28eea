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
	"github.com/xmtp-selfhosted/backend/pkg/notice"
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
	for i := range batch.Drafts {
		l.IDs = append(l.IDs, topic.SequenceID(101+i))
	}
	return l
}

// judgement is what a transaction makes of a group.
type judgement struct {
	store.Verdict
	outcome store.Outcome
	heads   []topic.SequenceID
	notices []notice.Stored
}

// decide lets a group be judged by what a transaction found.
func decide(t *testing.T, g *judge.Group, found store.Locked) (j judgement) {
	t.Helper()
	var err error
	j.Verdict, err = g.Decide(found)
	require.NoError(t, err)
	batch := g.Batch()
	j.outcome, j.heads, err = found.Settle(&batch, j.Store)
	require.NoError(t, err)
	j.notices = g.Tell(j.outcome)
	return j
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
	require.Len(t, batch.Drafts, 3)
	found := locked(batch)
	found.Heads[0] = 50
	j := decide(t, g, found)
	require.Equal(t, []int64{101, 102}, ids(first))
	require.Equal(t, []int64{102, 103, 101}, ids(second))
	require.Equal(t, 2, first.Stored)
	require.Equal(t, 1, second.Stored)
	require.Equal(t, []int{0, 1, 2}, j.Store)
	require.Equal(t, []topic.SequenceID{103}, j.heads)
	for i, previous := range []topic.SequenceID{50, 101, 102} {
		require.Equal(t, previous, j.notices[i].Previous)
	}
}

func TestAFailedRequestContributesNothing(t *testing.T) {
	kit := testkit.New(2)
	group := kit.Group()
	shared := kit.GroupMessage(group, 1)
	bad, good := parse(t, shared, kit.GroupMessage(group, 1)), parse(t, shared)
	bad.Envelopes[1].Failure = fault.Invalidf(fault.InvalidKeyPackage, "bad")
	g := judge.NewGroup(rules, []*request.Request{bad, good})
	j := decide(t, g, locked(g.Batch()))
	require.Equal(t, 1, fault.Of(bad.Err).Index)
	require.NoError(t, good.Err)
	require.Equal(t, []int{0}, j.Store)
	require.Len(t, j.notices, 1)
	require.Zero(t, j.notices[0].Previous)
}

// Proves API-035, API-036.
func TestStoredCopiesSucceedWhateverValidationSaid(t *testing.T) {
	kit := testkit.New(3)
	r := parse(t, kit.GroupMessage(kit.Group(), 1), kit.GroupMessage(kit.Group(), 1))
	r.Envelopes[0].Failure = fault.Invalidf(fault.InvalidKeyPackage, "bad")
	r.Envelopes[0].Update = &request.Update{Version: 7}
	g := judge.NewGroup(rules, []*request.Request{r})
	found := locked(g.Batch())
	found.Stored[0] = envelope.Meta{SequenceID: 9}
	j := decide(t, g, found)
	require.NoError(t, r.Err)
	require.Equal(t, []int64{9, 101}, ids(r))
	require.Equal(t, []int{1}, j.Store)
	require.Equal(t, 1, r.Stored)
}

// Proves API-051.
func TestAMovedHeadGoesBeforeOtherFailures(t *testing.T) {
	kit := testkit.New(4)
	client, now := kit.Client(), time.Now()
	first, second := parse(t, client.Registration(now)), parse(t, kit.GroupMessage(kit.Group(), 1), client.Registration(now.Add(time.Hour)))
	first.Envelopes[0].Update = &request.Update{Added: []store.Association{{Identifier: "a"}}}
	second.Envelopes[1].Update = &request.Update{Added: []store.Association{{Identifier: "b"}}}
	second.Envelopes[0].Failure = fault.Invalidf(fault.InvalidKeyPackage, "bad")
	g := judge.NewGroup(rules, []*request.Request{first, second})
	require.True(t, g.Batch().Identity)
	j := decide(t, g, locked(g.Batch()))
	require.NoError(t, first.Err)
	require.Equal(t, fault.HeadMoved, fault.KindOf(second.Err))
	require.Equal(t, []store.Change{{Draft: 0, Association: store.Association{Identifier: "a"}}}, j.Added)
}

// Proves API-021, API-062.
func TestExpiryByKind(t *testing.T) {
	kit := testkit.New(5)
	client, group := kit.Client(), kit.Group()
	short := rules
	short.Retention = limit.Retention{GroupMessage: time.Second, Welcome: 2 * time.Second, KeyPackage: 3 * time.Second}
	r := parse(t, kit.GroupMessage(group, 1), kit.Commit(group, 1), kit.Proposal(group, 1),
		kit.Welcome(client.Installation.PublicKey(), 1), client.KeyPackage(time.Now()), client.Registration(time.Now()),
		kit.CommitLogEntry(group, 1, 1))
	r.Envelopes[5].Update = &request.Update{}
	g := judge.NewGroup(short, []*request.Request{r})
	decide(t, g, locked(g.Batch()))
	require.NoError(t, r.Err)
	for i, want := range []time.Duration{time.Second, 0, 0, 2 * time.Second, 3 * time.Second, 0, 0} {
		if want != 0 {
			want += 1000
		}
		require.EqualValues(t, want, r.Metas[i].ExpiryNS, "envelope %d", i)
	}
}

// A group that nothing can refuse is certain; what is committed at once is told to its
// requests like the outcome of any other transaction.
func TestAGroupThatNothingCanRefuseIsCertain(t *testing.T) {
	kit := testkit.New(8)
	group := kit.Group()
	a, b, commit := kit.GroupMessage(group, 1), kit.GroupMessage(group, 2), kit.Commit(group, 1)
	first, second := parse(t, a, b), parse(t, b, commit, a)
	g := judge.NewGroup(rules, []*request.Request{first, second})
	batch := g.Batch()
	require.True(t, batch.Certain)
	require.Len(t, batch.Drafts, 3)
	for i, e := range []*backendv1.ClientEnvelope{a, b, commit} {
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		require.NoError(t, err)
		draft := store.Draft{Hash: envelope.HashOf(encoded), Payload: encoded, Retention: rules.Retention.GroupMessage}
		if e == commit {
			draft.Retention, draft.IsCommitOrProposal = 0, true
		}
		require.Equal(t, draft, batch.Drafts[i])
	}
	found := locked(batch)
	found.Heads[0], found.Stored = 50, nil
	outcome, _, err := found.Settle(&batch, []int{0, 1, 2})
	require.NoError(t, err)
	notices := g.Tell(outcome)
	require.Equal(t, []int64{101, 102}, ids(first))
	require.Equal(t, []int64{102, 103, 101}, ids(second))
	require.Equal(t, []int{2, 1}, []int{first.Stored, second.Stored})
	for i, previous := range []topic.SequenceID{50, 101, 102} {
		require.Equal(t, previous, notices[i].Previous)
		require.Equal(t, batch.Drafts[i].Payload, notices[i].Payload)
	}
	// Asked, it would have said the same.
	require.Equal(t, outcome, decide(t, g, found).outcome)
}

func TestAGroupThatMayBeRefusedIsNotCertain(t *testing.T) {
	kit := testkit.New(9)
	group := kit.Group()
	message := func() *backendv1.ClientEnvelope { return kit.GroupMessage(group, 10) }
	certain := func(r judge.Rules, requests ...*request.Request) bool {
		return judge.NewGroup(r, requests).Batch().Certain
	}
	require.True(t, certain(rules, parse(t, message())))

	failed := parse(t, message())
	failed.Envelopes[0].Failure = fault.Invalidf(fault.InvalidKeyPackage, "bad")
	require.False(t, certain(rules, parse(t, message()), failed), "one fails unless it is stored")

	require.False(t, certain(rules, parse(t, kit.Client().Registration(time.Now()))), "an identity update depends on its inbox")

	tight, one := rules, parse(t, message())
	longest := envelope.Meta{Topic: group.Topic(), SequenceID: math.MaxInt64, ServerNS: math.MaxInt64, ExpiryNS: math.MaxInt64, IsCommitOrProposal: true}
	tight.Limits.MaxResponseBytes = uint64(len(envelope.AppendMetaField(nil, 1, &longest)))
	require.True(t, certain(tight, one))
	tight.Limits.MaxResponseBytes--
	require.False(t, certain(tight, one), "the response may be too long")

	large := func(size int) *request.Request {
		r := parse(t, kit.GroupMessage(group, size))
		r.Bytes = size
		return r
	}
	require.True(t, certain(rules, large(1<<19), large(1<<19)))
	require.False(t, certain(rules, large(1<<19), large(1<<19+1)), "much would be written in vain")
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
	require.Len(t, g.Batch().Drafts, 1)
	j := decide(t, g, locked(g.Batch()))
	for _, r := range []*request.Request{first, second, third} {
		require.Equal(t, fault.TooLong, fault.KindOf(r.Err))
	}
	require.NoError(t, short.Err)
	require.Equal(t, []int64{101}, ids(short))
	require.Equal(t, []int{0}, j.Store)
	require.Len(t, j.notices, 1)
}

// What validation found is about one server, and about what was stored there: it says
// nothing about another, and nothing about an envelope that is gone.
func TestOutdatedFindingsStoreNothing(t *testing.T) {
	kit := testkit.New(11)
	client, group := kit.Client(), kit.Group()
	for name, c := range map[string]struct {
		update  *request.Update
		failure *fault.Error
		era     store.Era // of the findings; the transaction is in era 2
		there   bool
		want    error
	}{
		"stored at validation, gone at commit":     {nil, nil, 2, false, judge.ErrOutdated},
		"stored before a failover, gone after it":  {nil, nil, 1, false, judge.ErrOutdated},
		"valid before a failover":                  {&request.Update{}, nil, 1, false, judge.ErrOutdated},
		"invalid before a failover":                {&request.Update{}, fault.Invalidf(fault.InvalidIdentityUpdate, "bad"), 1, false, judge.ErrOutdated},
		"before the first connection":              {&request.Update{}, nil, 0, false, judge.ErrOutdated},
		"stored before a failover and there after": {nil, nil, 1, true, nil},
		"valid before a failover and there after":  {&request.Update{}, nil, 1, true, nil},
		"valid": {&request.Update{}, nil, 2, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := parse(t, kit.GroupMessage(group, 1), client.Registration(time.Now()))
			beside := parse(t, client.KeyPackage(time.Now()))
			r.Era, r.Envelopes[1].Update, r.Envelopes[1].Failure = c.era, c.update, c.failure
			g := judge.NewGroup(rules, []*request.Request{r, beside})
			found := locked(g.Batch())
			found.Era = 2
			if c.there {
				found.Stored[1] = envelope.Meta{SequenceID: 9}
			}
			j := decide(t, g, found)
			require.NoError(t, beside.Err)
			require.ErrorIs(t, r.Err, c.want)
			if c.want != nil {
				require.Equal(t, []int{2}, j.Store, "only what is beside it")
				require.Equal(t, fault.Unavailable, fault.KindOf(r.Err))
				require.Empty(t, r.Metas)
			}
		})
	}
}
