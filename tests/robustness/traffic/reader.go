package traffic

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
)

// reader pages through topics by Query and asks for the newest.
type reader struct {
	traffic *Traffic
	client  backendv1.QueryServiceClient
	random  *rand.Rand
	// reached is where earlier rounds ended; most rounds go on from there.
	reached map[topic.Topic]topic.SequenceID
}

const readerPause = 50 * time.Millisecond

func (r *reader) run(ctx context.Context) {
	r.reached = map[topic.Topic]topic.SequenceID{}
	for sleep(ctx, time.Duration(r.random.Float64()*2*float64(readerPause))) {
		if r.random.IntN(4) == 0 {
			r.newest(ctx)
		} else {
			r.round(ctx)
		}
	}
}

func (r *reader) pick(most int) []topic.Topic {
	all := r.traffic.topics.all()
	chosen := map[topic.Topic]bool{}
	for range 1 + r.random.IntN(most) {
		chosen[all[r.random.IntN(len(all))]] = true
	}
	names := make([]topic.Topic, 0, len(chosen))
	for _, name := range all { // in the order of the directory
		if chosen[name] {
			names = append(names, name)
		}
	}
	return names
}

// pagesOfRound bounds one round; the next goes on.
const pagesOfRound = 20

// round pages as API-074 says, until there is no more.
func (r *reader) round(ctx context.Context) {
	names := r.pick(8)
	cursors := map[topic.Topic]topic.SequenceID{}
	for _, name := range names {
		if r.random.IntN(10) > 0 {
			cursors[name] = r.reached[name]
		}
	}
	limit := uint32(1 + r.random.IntN(100))
	for range pagesOfRound {
		page, ok := r.page(ctx, names, cursors, limit)
		if !ok || !page.HasMore {
			break
		}
	}
	for name, cursor := range cursors {
		r.reached[name] = cursor
	}
}

// page reads one page and moves the cursors.
func (r *reader) page(ctx context.Context, names []topic.Topic, cursors map[topic.Topic]topic.SequenceID, limit uint32) (check.Page, bool) {
	recorder := r.traffic.Recorder
	page := check.Page{Begun: recorder.now(), Cursors: map[topic.Topic]topic.SequenceID{}}
	request := &backendv1.QueryRequest{Limit: limit}
	for _, name := range names {
		page.Cursors[name] = cursors[name]
		request.Queries = append(request.Queries, topicQuery(name, cursors[name]))
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := r.client.Query(ctx, request)
	if err != nil {
		recorder.failed("Query", err)
		return page, false
	}
	page.HasMore = response.GetContinuation().GetHasMore()
	for _, e := range response.GetEnvelopes() {
		seen := envelopeOf(e)
		page.Envelopes = append(page.Envelopes, seen)
		cursors[seen.Meta.Topic] = max(cursors[seen.Meta.Topic], seen.Meta.SequenceID)
	}
	if len(page.Envelopes) > int(limit) {
		recorder.surprise("a page of %d has %d envelopes", limit, len(page.Envelopes))
	}
	if page.HasMore && len(page.Envelopes) == 0 {
		recorder.surprise("an empty page says that there is more")
	}
	recorder.page(page)
	return page, true
}

func (r *reader) newest(ctx context.Context) {
	request := &backendv1.QueryNewestRequest{IncludeFullEnvelope: true}
	for _, name := range r.pick(20) {
		request.Topics = append(request.Topics, &backendv1.Topic{Topic: []byte(name)})
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := r.client.QueryNewest(ctx, request)
	if err != nil {
		r.traffic.Recorder.failed("QueryNewest", err)
		return
	}
	var seen []check.Envelope
	for _, result := range response.GetResults() {
		seen = append(seen, envelopeOf(&backendv1.ServerEnvelope{Meta: result.GetMeta(), Envelope: result.GetEnvelope()}))
	}
	r.traffic.Recorder.newest(seen)
}

func topicQuery(name topic.Topic, cursor topic.SequenceID) *backendv1.TopicQuery {
	return &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: []byte(name)}, Cursor: &backendv1.Cursor{SequenceId: uint64(cursor)}}
}
