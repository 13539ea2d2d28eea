package traffic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
)

// quickBackoff finds a gateway soon after it is back.
var quickBackoff = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second}

// Recorder collects what clients see.
type Recorder struct {
	begun time.Time

	mu        sync.Mutex
	seen      check.History
	counts    Counts
	lastAck   time.Duration
	highest   topic.SequenceID
	surprises []string
}

// Counts are figures of a run.
type Counts struct {
	Requests, Acknowledged, Envelopes, Refused, Pages, StreamsOpened, Delivered, Inboxes int
	// Codes counts failed calls by method and code.
	Codes map[string]int
	// LongestPause is the longest time between two acknowledged publishes, and
	// LongestPauseEnd when it ended, from the begin of the traffic.
	LongestPause, LongestPauseEnd time.Duration
}

func newRecorder() *Recorder {
	return &Recorder{
		begun:  time.Now(),
		seen:   check.History{Offered: map[check.Hash]time.Duration{}, Refused: map[check.Hash]bool{}},
		counts: Counts{Codes: map[string]int{}},
	}
}

// now is monotonic.
func (r *Recorder) now() time.Duration { return time.Since(r.begun) }

// Counts returns the figures so far.
func (r *Recorder) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts
	c.Codes = maps.Clone(c.Codes)
	return c
}

// Highest is the highest sequence id that any client has seen so far.
func (r *Recorder) Highest() topic.SequenceID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.highest
}

// Surprises are answers that no fault explains, such as a valid envelope refused.
func (r *Recorder) Surprises() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.surprises
}

func (r *Recorder) history() *check.History {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &r.seen
}

// offer notes contents before they are sent for the first time.
func (r *Recorder) offer(contents []check.Hash) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Requests++
	for _, hash := range contents {
		if _, earlier := r.seen.Offered[hash]; !earlier {
			r.seen.Offered[hash] = now
		}
	}
}

func (r *Recorder) acknowledged(begun time.Duration, sent []check.Hash, response *backendv1.PublishResponse) {
	publish := check.Publish{Begun: begun, Ended: r.now(), Sent: sent}
	for _, meta := range response.GetEnvelopeMetas() {
		publish.Metas = append(publish.Metas, metaOf(meta))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Publishes = append(r.seen.Publishes, publish)
	for _, meta := range publish.Metas {
		r.highest = max(r.highest, meta.SequenceID)
	}
	r.counts.Acknowledged++
	r.counts.Envelopes += len(sent)
	if pause := publish.Ended - r.lastAck; pause > r.counts.LongestPause && r.lastAck > 0 {
		r.counts.LongestPause, r.counts.LongestPauseEnd = pause, publish.Ended
	}
	r.lastAck = publish.Ended
}

// refused notes contents that the backend had to refuse and did.
func (r *Recorder) refused(contents []check.Hash) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Refused++
	for _, hash := range contents {
		r.seen.Refused[hash] = true
	}
}

func (r *Recorder) page(p check.Page) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Pages++
	r.seen.Pages = append(r.seen.Pages, p)
}

func (r *Recorder) newest(seen []check.Envelope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Newest = append(r.seen.Newest, seen...)
}

func (r *Recorder) inbox(seen check.Inbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Inboxes++
	r.seen.Inboxes = append(r.seen.Inboxes, seen)
}

func (r *Recorder) stream(s check.Stream) {
	delivered := 0
	for _, e := range s.Events {
		if e.Kind == check.Delivered {
			delivered++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.StreamsOpened++
	r.counts.Delivered += delivered
	r.seen.Streams = append(r.seen.Streams, s)
}

// lost notes an identity update that is refused because a failover lost what it
// builds on.
func (r *Recorder) lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Codes["Publish without what a failover lost"]++
}

// surpriseLimit bounds what is kept of a flood.
const surpriseLimit = 50

func (r *Recorder) surprise(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.surprises) < surpriseLimit {
		r.surprises = append(r.surprises, fmt.Sprintf("after %s: ", r.now().Round(time.Millisecond))+fmt.Sprintf(format, args...))
	}
}

// explained are the codes that a fault may cause on a correct call
// (docs/design.md#status-codes). RESOURCE_EXHAUSTED is for streams: a slow consumer.
var explained = map[codes.Code]bool{
	codes.Unavailable: true, codes.DeadlineExceeded: true, codes.Canceled: true, codes.ResourceExhausted: true,
}

// failed counts a failure of a correct call and keeps it when no fault explains
// its code.
func (r *Recorder) failed(method string, err error) {
	code := status.Code(err)
	r.mu.Lock()
	r.counts.Codes[method+" "+code.String()]++
	r.mu.Unlock()
	// An update that raced with another of its inbox is ABORTED (API-052).
	if explained[code] || errors.Is(err, context.Canceled) || method == "Publish" && code == codes.Aborted {
		return
	}
	r.surprise("%s failed with %v", method, err)
}

// hashOf is the hash of an envelope's canonical bytes.
func hashOf(e *backendv1.ClientEnvelope) check.Hash {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("encode an envelope: %v", err)) // what was decoded encodes
	}
	return envelope.HashOf(encoded)
}

func metaOf(m *backendv1.EnvelopeMeta) envelope.Meta {
	meta := envelope.Meta{
		Topic: topic.Topic(m.GetTopic().GetTopic()), SequenceID: topic.SequenceID(m.GetCursor().GetSequenceId()),
		ServerNS: int64(m.GetServerNs()), ExpiryNS: int64(m.GetExpiryNs()), IsCommitOrProposal: m.GetIsCommitOrProposal(),
	}
	copy(meta.MessageHash[:], m.GetMessageHash().GetSha256())
	return meta
}

func envelopeOf(e *backendv1.ServerEnvelope) check.Envelope {
	return check.Envelope{Meta: metaOf(e.GetMeta()), Content: hashOf(e.GetEnvelope())}
}
