package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Report is what a replay saw.
type Report struct {
	Requests, Published, Topics int
	// Stored is how many different envelopes the publishes named; Duplicates is
	// how many were named again.
	Stored, Duplicates int
	// Delivered came over the stream, Live of them after the stream had caught up.
	Delivered, Live int
	// ReadBack came by Query.
	ReadBack int
	// Median and P99 are from the start of the publish call to delivery on the
	// stream, for live envelopes.
	Median, P99, Max time.Duration
}

// Options of a replay.
type Options struct {
	// DeliveryTimeout bounds the wait for the stream after the last publish.
	DeliveryTimeout time.Duration
	// Progress is told after each request; it may be nil.
	Progress func(done, total int)
	// Between is called before each request with its number; it may be nil. A
	// test restarts a role here.
	Between func(request int)
}

// position names a stored envelope.
type position struct {
	topic      topic.Topic
	sequenceID topic.SequenceID
}

// sent is what is known of a published envelope.
type sent struct {
	item   Item
	begun  time.Time
	meta   *backendv1.EnvelopeMeta
	copies int
}

// Run replays a plan through the gateway on the connection. The error says what
// was missing, altered or out of order.
func Run(ctx context.Context, connection grpc.ClientConnInterface, plan *Plan, options Options) (*Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	follower, err := follow(ctx, connection, topicsOf(plan))
	if err != nil {
		return nil, err
	}
	report := &Report{Requests: len(plan.Requests), Topics: len(follower.targets)}
	published, err := publish(ctx, connection, plan, options, report)
	if err != nil {
		return report, err
	}
	if err := follower.awaitAll(ctx, published, options.DeliveryTimeout); err != nil {
		return report, err
	}
	cancel()
	received := follower.stop()
	return report, errors.Join(
		checkDelivered(received, published, follower.targets, report),
		readBack(context.WithoutCancel(ctx), connection, published, report),
	)
}

func topicsOf(plan *Plan) []topic.Topic {
	var topics []topic.Topic
	seen := map[topic.Topic]bool{}
	for _, request := range plan.Requests {
		for _, item := range request {
			if !seen[item.Topic] {
				seen[item.Topic] = true
				topics = append(topics, item.Topic)
			}
		}
	}
	return topics
}

func publish(ctx context.Context, connection grpc.ClientConnInterface, plan *Plan, options Options, report *Report) (map[position]*sent, error) {
	client := backendv1.NewPublishServiceClient(connection)
	published := map[position]*sent{}
	for i, request := range plan.Requests {
		if options.Between != nil {
			options.Between(i)
		}
		envelopes := make([]*backendv1.ClientEnvelope, len(request))
		for j, item := range request {
			envelopes[j] = item.Envelope
		}
		begun := time.Now()
		response, err := client.Publish(ctx, &backendv1.PublishRequest{Envelopes: envelopes})
		if err != nil {
			return nil, fmt.Errorf("publish request %d of %d, which begins with %s: %w", i+1, len(plan.Requests), request[0].Name, err)
		}
		if len(response.GetEnvelopeMetas()) != len(request) {
			return nil, fmt.Errorf("request %d: %d envelopes were answered by %d entries", i+1, len(request), len(response.GetEnvelopeMetas()))
		}
		for j, meta := range response.GetEnvelopeMetas() {
			report.Published++
			at := position{request[j].Topic, topic.SequenceID(meta.GetCursor().GetSequenceId())}
			if string(meta.GetTopic().GetTopic()) != string(at.topic) {
				return nil, fmt.Errorf("%s was stored on topic %x, expected %x", request[j].Name, meta.GetTopic().GetTopic(), at.topic)
			}
			if earlier := published[at]; earlier != nil {
				report.Duplicates++
				if !proto.Equal(earlier.item.Envelope, request[j].Envelope) || !proto.Equal(earlier.meta, meta) {
					return nil, fmt.Errorf("%s and %s share sequence id %d but are not the same", earlier.item.Name, request[j].Name, at.sequenceID)
				}
				continue
			}
			published[at] = &sent{item: request[j], begun: begun, meta: meta}
		}
		if options.Progress != nil {
			options.Progress(i+1, len(plan.Requests))
		}
	}
	report.Stored = len(published)
	return published, nil
}

// checkDelivered compares the stream with what was published. Envelopes of
// others on the same topics count for the order only.
func checkDelivered(received []delivery, published map[position]*sent, targets map[topic.Topic]topic.SequenceID, report *Report) error {
	last := map[topic.Topic]topic.SequenceID{}
	var latencies []time.Duration
	for _, d := range received {
		at := d.position()
		if at.sequenceID <= last[at.topic] {
			return fmt.Errorf("topic %x: sequence id %d came after %d", at.topic, at.sequenceID, last[at.topic])
		}
		last[at.topic] = at.sequenceID
		origin := published[at]
		if origin == nil {
			continue
		}
		if err := same(origin, d.envelope); err != nil {
			return fmt.Errorf("on the stream: %w", err)
		}
		origin.copies++
		report.Delivered++
		if at.sequenceID > targets[at.topic] {
			report.Live++
			latencies = append(latencies, d.at.Sub(origin.begun))
		}
	}
	for at, origin := range published {
		if origin.copies != 1 {
			return fmt.Errorf("%s, sequence id %d, was delivered %d times, expected once", origin.item.Name, at.sequenceID, origin.copies)
		}
	}
	if len(latencies) > 0 {
		slices.Sort(latencies)
		report.Median = latencies[len(latencies)/2]
		report.P99 = latencies[len(latencies)*99/100]
		report.Max = latencies[len(latencies)-1]
	}
	return nil
}

// same compares a delivered envelope with the published one and its metadata
// with that of the publish response.
func same(origin *sent, envelope *backendv1.ServerEnvelope) error {
	if !proto.Equal(origin.item.Envelope, envelope.GetEnvelope()) {
		return fmt.Errorf("%s came back altered", origin.item.Name)
	}
	if !proto.Equal(origin.meta, envelope.GetMeta()) {
		return fmt.Errorf("%s came back with other metadata than its publish returned", origin.item.Name)
	}
	return nil
}

// readBack reads every topic by Query, page by page (API-074).
func readBack(ctx context.Context, connection grpc.ClientConnInterface, published map[position]*sent, report *Report) error {
	client := backendv1.NewQueryServiceClient(connection)
	missing := map[position]*sent{}
	topics := map[topic.Topic]bool{}
	for at, origin := range published {
		if at.topic.Kind() != topic.KeyPackage { // read by QueryNewest only (API-075)
			missing[at] = origin
			topics[at.topic] = true
		}
	}
	for name := range topics {
		cursor := uint64(0)
		for more := true; more; {
			page, err := client.Query(ctx, &backendv1.QueryRequest{Limit: 1000, Queries: []*backendv1.TopicQuery{
				{Topic: &backendv1.Topic{Topic: []byte(name)}, Cursor: &backendv1.Cursor{SequenceId: cursor}}}})
			if err != nil {
				return fmt.Errorf("query topic %x: %w", name, err)
			}
			for _, envelope := range page.GetEnvelopes() {
				id := envelope.GetMeta().GetCursor().GetSequenceId()
				if id <= cursor {
					return fmt.Errorf("topic %x: query returned sequence id %d after %d", name, id, cursor)
				}
				cursor = id
				at := position{name, topic.SequenceID(id)}
				if origin := missing[at]; origin != nil {
					if err := same(origin, envelope); err != nil {
						return fmt.Errorf("by query: %w", err)
					}
					delete(missing, at)
					report.ReadBack++
				}
			}
			more = page.GetContinuation().GetHasMore()
		}
	}
	for at, origin := range missing {
		return fmt.Errorf("%s, sequence id %d, is missing in the query (and %d others)", origin.item.Name, at.sequenceID, len(missing)-1)
	}
	return nil
}
