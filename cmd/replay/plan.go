// Package replay sends a client session through a backend while following every
// topic it touches, and checks that what comes out is what went in: whole,
// unaltered, once and in order. The demo of xmtpctl and the end-to-end tests are
// both this.
package replay

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/payload"
	"github.com/xmtp-selfhosted/backend/pkg/recording"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// maxEnvelopeBytes is the limit of an envelope (API-031).
const maxEnvelopeBytes = 1 << 20

// Item is one envelope to publish.
type Item struct {
	// Name says where the envelope comes from.
	Name     string
	Topic    topic.Topic
	Envelope *backendv1.ClientEnvelope
}

// Plan is requests in order, each of which is published at once.
type Plan struct {
	Requests [][]Item
	// Substituted is how many recorded payloads were replaced by fresh ones.
	Substituted int
}

// Recorded is the recorded session as it is: for a backend whose clock stands at
// the time of the recording and whose chains accept its contract signatures.
func Recorded() (*Plan, error) {
	session, err := recording.Load()
	if err != nil {
		return nil, err
	}
	plan := &Plan{}
	for _, request := range session.Requests() {
		var items []Item
		for _, p := range request {
			items = append(items, Item{Name: p.ID, Topic: p.Topic, Envelope: p.Envelope})
		}
		plan.Requests = append(plan.Requests, items)
	}
	return plan, nil
}

// Presentable is the recorded session for any backend at any time: key packages
// that have expired, updates that need a chain, and the updates that build on
// those are replaced by fresh ones of the same kind. Count further requests with
// a fresh group message each are added, so that there is something new to
// deliver however often a session is replayed.
func Presentable(now time.Time, seed uint64, count int) (*Plan, error) {
	session, err := recording.Load()
	if err != nil {
		return nil, err
	}
	s := substitutes{kit: testkit.New(seed), now: now, inboxes: map[topic.Topic]*testkit.Client{}}
	plan := &Plan{}
	for _, request := range session.Requests() {
		var items []Item
		for _, p := range request {
			envelope, err := s.envelopeFor(p)
			if err != nil {
				return nil, fmt.Errorf("plan %s: %w", p.ID, err)
			}
			if envelope == nil {
				items = append(items, Item{Name: p.ID, Topic: p.Topic, Envelope: p.Envelope})
				continue
			}
			plan.Substituted++
			item, err := fresh("instead of "+p.ID, envelope)
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		}
		plan.Requests = append(plan.Requests, items)
	}
	group := s.kit.Group()
	for i := range count {
		item, err := fresh(fmt.Sprintf("fresh message %d", i+1), s.kit.GroupMessage(group, 1024))
		if err != nil {
			return nil, err
		}
		plan.Requests = append(plan.Requests, []Item{item})
	}
	return plan, nil
}

func fresh(name string, envelope *backendv1.ClientEnvelope) (Item, error) {
	parsed, err := parse(envelope)
	if err != nil {
		return Item{}, fmt.Errorf("plan a fresh payload %s: %w", name, err)
	}
	return Item{Name: name, Topic: parsed.Topic, Envelope: envelope}, nil
}

func parse(envelope *backendv1.ClientEnvelope) (*payload.Payload, error) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(envelope)
	if err != nil {
		return nil, err
	}
	return payload.Parse(encoded, maxEnvelopeBytes)
}

// substitutes makes what stands in for payloads that can't pass any more.
type substitutes struct {
	kit *testkit.Kit
	now time.Time
	// inboxes has a client for each recorded inbox whose history is replaced from
	// some update on.
	inboxes map[topic.Topic]*testkit.Client
}

// envelopeFor returns nil for a payload that passes as it was recorded.
func (s *substitutes) envelopeFor(p recording.Payload) (*backendv1.ClientEnvelope, error) {
	switch p.Topic.Kind() {
	case topic.KeyPackage:
		parsed, err := parse(p.Envelope)
		if err != nil {
			return nil, err
		}
		if parsed.KeyPackage.Validate(s.now) == nil {
			return nil, nil
		}
		return s.kit.Client().KeyPackage(s.now), nil
	case topic.IdentityUpdate:
		client, replaced := s.inboxes[p.Topic]
		switch {
		case replaced:
			update, _ := client.AddInstallation(s.now)
			return update, nil
		case p.NeedsChain:
			client = s.kit.Client()
			s.inboxes[p.Topic] = client
			return client.Registration(s.now), nil
		}
	}
	return nil, nil
}
