package traffic

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	"github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
)

// inbox is one that a client registered.
type inbox struct {
	client       *testkit.Client
	registration *backendv1.ClientEnvelope
	wallets      []string // addresses that are, or were to become, members
}

type inboxes struct {
	mu  sync.Mutex
	all []*inbox
}

func (i *inboxes) add(one *inbox) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all = append(i.all, one)
}

// repeater is a client that has little to say and says it again: it registers an
// inbox, adds some wallets to it, and all the time sends its newest update once
// more. A failover finds some of these copies between their validation and their
// commit.
type repeater struct{ *publisher }

const (
	repeatedUpdates = 6  // of an inbox
	copiesOfEach    = 12 // before the next one
	repeaterPause   = 10 * time.Millisecond
)

func (r *repeater) run(ctx context.Context) {
	for ctx.Err() == nil {
		r.inbox(ctx)
		sleep(ctx, repeaterPause)
	}
}

// inbox is the life of one.
func (r *repeater) inbox(ctx context.Context) {
	calls := context.WithoutCancel(ctx)
	client := r.kit.Client()
	r.lineage = r.traffic.failovers.Load()
	own := &inbox{client: client, registration: client.Registration(time.Now()), wallets: []string{client.Wallet.Address()}}
	chain := []*backendv1.ClientEnvelope{own.registration}
	if !r.publish(calls, chain) {
		return
	}
	r.traffic.topics.add(client.Topic())
	for n := range repeatedUpdates {
		for range copiesOfEach {
			if ctx.Err() != nil || !r.repeat(calls, chain) {
				break
			}
			sleep(ctx, repeaterPause)
		}
		wallet := associationtest.NewWallet(fmt.Sprintf("%s, wallet %d", client.InboxID, n))
		update := associationtest.NewUpdate(client.InboxID, uint64(time.Now().UnixNano())).Add(client.Wallet, wallet).Update()
		chain, own.wallets = append(chain, testkit.Identity(update)), append(own.wallets, wallet.Address())
	}
	r.repeat(calls, chain)
	r.traffic.inboxes.add(own)
}

// repeat sends the newest update again, and after a failover all of them in their
// order: what is still there is answered as it was, what was lost is stored anew.
func (r *repeater) repeat(ctx context.Context, chain []*backendv1.ClientEnvelope) bool {
	if r.lineage == r.traffic.failovers.Load() {
		if r.publish(ctx, chain[len(chain)-1:]) {
			return true
		}
	}
	r.lineage = r.traffic.failovers.Load()
	for i := range chain {
		if !r.publish(ctx, chain[i:i+1]) {
			return false
		}
	}
	return true
}

// inboxWithin is how long an inbox may take to be as it should be: servers may have
// just started, and the replica that answers lookups may lag.
const inboxWithin = 15 * time.Second

// VisitInboxes compares every inbox with its log, has its owner add to it, and
// notes what it found. It is for the time after the last fault.
func (t *Traffic) VisitInboxes(ctx context.Context) error {
	conn, err := t.dial()
	if err != nil {
		return err
	}
	v := visitor{
		traffic: t, queries: backendv1.NewQueryServiceClient(conn), identities: backendv1.NewIdentityServiceClient(conn),
		publisher: newPublisher(t, conn, t.config.Seed+2000, nil),
	}
	v.publisher.lineage = t.failovers.Load()
	for _, one := range t.inboxes.all {
		seen := v.visit(ctx, one)
		t.Recorder.inbox(seen)
	}
	return ctx.Err()
}

type visitor struct {
	traffic    *Traffic
	queries    backendv1.QueryServiceClient
	identities backendv1.IdentityServiceClient
	publisher  *publisher
}

func (v *visitor) visit(ctx context.Context, one *inbox) check.Inbox {
	seen := check.Inbox{Topic: one.client.Topic()}
	var members []association.Identifier
	err := v.patiently(ctx, func() (settled bool, err error) {
		members, err = v.replay(ctx, one)
		return status.Code(err) != codes.Unavailable, err
	})
	if err != nil {
		seen.Broken = err.Error()
		return seen
	}
	err = v.patiently(ctx, func() (right bool, err error) {
		seen.Lookups, right, err = v.lookups(ctx, one, members)
		return right, err
	})
	if err != nil {
		seen.Broken = "its lookups fail: " + err.Error()
		return seen
	}
	var request []*backendv1.ClientEnvelope
	if len(members) == 0 { // lost with its registration
		request = append(request, one.registration)
	} else {
		update, _ := one.client.AddInstallation(time.Now())
		request = append(request, update)
	}
	seen.Extended = v.publisher.publish(ctx, request)
	return seen
}

// patiently asks until an answer is settled, or for long enough.
func (v *visitor) patiently(ctx context.Context, ask func() (settled bool, err error)) error {
	for deadline := time.Now().Add(inboxWithin); ; sleep(ctx, 50*time.Millisecond) {
		settled, err := ask()
		if settled || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
	}
}

// replay reads the log of an inbox and returns the members that it makes.
func (v *visitor) replay(ctx context.Context, one *inbox) ([]association.Identifier, error) {
	request := &backendv1.QueryRequest{Limit: 1000, Queries: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(one.client.Topic())}}}}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := v.queries.Query(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("its log cannot be read: %w", err)
	}
	replay := association.NewReplayer()
	for _, e := range response.GetEnvelopes() {
		if err := replay.Next(ctx, e.GetEnvelope().GetIdentityUpdate()); err != nil {
			return nil, fmt.Errorf("its log cannot be replayed: %w", err)
		}
	}
	return replay.State().Members(), nil
}

// lookups asks for the inbox of each wallet and says whether all answers are those
// of the replay.
func (v *visitor) lookups(ctx context.Context, one *inbox, members []association.Identifier) (all []check.Lookup, right bool, err error) {
	request := &backendv1.GetInboxIdsRequest{}
	for _, wallet := range one.wallets {
		request.Requests = append(request.Requests, &backendv1.GetInboxIdsRequest_Request{
			Identifier: wallet, IdentifierKind: associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM})
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := v.identities.GetInboxIds(ctx, request)
	if err != nil {
		return nil, false, err
	}
	right = true
	for i, answer := range response.GetResponses() {
		wallet := one.wallets[i]
		lookup := check.Lookup{Found: answer.GetInboxId()}
		if slices.ContainsFunc(members, func(m association.Identifier) bool { return strings.EqualFold(m.Text(), wallet) }) {
			lookup.Replayed = one.client.InboxID
		}
		all = append(all, lookup)
		right = right && lookup.Found == lookup.Replayed
	}
	return all, right, nil
}
