// Package query answers Query and QueryNewest. Requests are read where they lie
// in the message, and stored bytes go into responses as they are.
package query

import (
	"context"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
)

// Service is the full name of the service whose methods are here.
const Service = "xmtp.backend.v1.QueryService"

// Database runs a read on a server that is up.
type Database interface {
	Read(ctx context.Context, read func(context.Context, *store.Pool) error) error
}

// Handler answers the calls of QueryService.
type Handler struct {
	limits  limit.Config
	primary Database
	replica Database
}

// New returns a handler. Query reads from primary, QueryNewest from replica
// (API-018).
func New(limits limit.Config, primary, replica Database) *Handler {
	return &Handler{limits: limits, primary: primary, replica: replica}
}

// Service describes the methods to a server.
func (h *Handler) Service() rpc.Service {
	return rpc.Service{Name: Service, Methods: []rpc.Method{
		{Name: "Query", Unary: h.Query},
		{Name: "QueryNewest", Unary: h.Newest},
	}}
}

// Field numbers of the messages.
const (
	requestQueries = 1
	requestLimit   = 2
	queryTopic     = 1
	queryCursor    = 2
	topicBytes     = 1
	cursorID       = 1

	responseEnvelopes    = 1
	responseContinuation = 2
	continuationHasMore  = 1
)

// continuationSize is the longest encoded continuation: tag and length, tag and
// flag.
const continuationSize = 4

// Query returns the envelopes above the cursors (section 6 of the
// specification).
func (h *Handler) Query(ctx context.Context, request []byte) (*rpc.Frame, error) {
	asked, err := h.parseQuery(request)
	if err != nil {
		return nil, err
	}
	var page store.Page
	err = h.primary.Read(ctx, func(ctx context.Context, pool *store.Pool) (err error) {
		page, err = pool.Query(ctx, asked, appendEnvelope)
		return err
	})
	if err != nil {
		return nil, err
	}
	return rpc.FrameOfBuffer(appendContinuation(page.Encoded, page.More)), nil
}

func appendEnvelope(dst []byte, meta *envelope.Meta, payload []byte) []byte {
	return envelope.AppendServerField(dst, responseEnvelopes, meta, payload)
}

func appendContinuation(dst []byte, more bool) []byte {
	dst = protowire.AppendTag(dst, responseContinuation, protowire.BytesType)
	if !more {
		return protowire.AppendVarint(dst, 0)
	}
	dst = protowire.AppendVarint(dst, 2)
	dst = protowire.AppendTag(dst, continuationHasMore, protowire.VarintType)
	return protowire.AppendVarint(dst, 1)
}

func (h *Handler) parseQuery(request []byte) (store.Query, error) {
	count, err := countTopics(request, requestQueries, h.limits.MaxQueryTopics)
	if err != nil {
		return store.Query{}, err
	}
	rows := uint32(0)
	list := newTopicList(count)
	m := wire.Read(request)
	for m.Next() {
		switch {
		case m.IsBytes(requestQueries):
			name, cursor, err := parseTopicQuery(m.Bytes())
			if err != nil {
				return store.Query{}, at("query", list.read, err)
			}
			list.add(name, cursor)
		case m.IsVarint(requestLimit):
			rows = uint32(m.Varint())
		}
	}
	if rows == 0 {
		rows = h.limits.DefaultQueryLimit
	}
	rows = min(rows, h.limits.MaxQueryLimit)
	if len(list.topics) > int(rows) {
		list.rotate()
	}
	return store.Query{
		Topics: list.topics, Cursors: list.cursors, Limit: int(rows),
		MaxBytes: int(h.limits.MaxResponseBytes) - continuationSize,
		Buffer:   rpc.Buffer,
	}, m.Err()
}

func countTopics(request []byte, field protowire.Number, most uint32) (int, error) {
	count, err := wire.Count(request, field, most)
	if err == nil && count > int(most) {
		err = fault.Invalidf(fault.NoReason, "the request names more than %d topics, expected at most %d", most, most)
	}
	return count, err
}

// at says which entry of a request a failure is about.
func at(what string, index int, err error) error {
	failure := fault.Of(err)
	if failure.Kind != fault.Invalid {
		return err
	}
	return fault.Invalidf(fault.NoReason, "%s %d: %s", what, index, failure.Text())
}

func parseTopicQuery(message []byte) (name topic.Topic, cursor topic.SequenceID, err error) {
	var raw []byte
	var id uint64
	m := wire.Read(message)
	for m.Next() {
		switch {
		case m.IsBytes(queryTopic):
			raw, err = parseTopic(m.Bytes(), raw)
		case m.IsBytes(queryCursor):
			id, err = parseCursor(m.Bytes(), id)
		}
		if err != nil {
			return "", 0, err
		}
	}
	if m.Err() != nil {
		return "", 0, m.Err()
	}
	if name, err = topic.Parse(raw); err != nil {
		return "", 0, err
	}
	if name.Kind() == topic.KeyPackage {
		return "", 0, fault.Invalidf(fault.NoReason, "a key-package topic cannot be queried, expected a read of its newest envelope")
	}
	cursor, err = topic.ParseCursor(id)
	return name, cursor, err
}

// parseTopic reads a Topic message; a message that occurs twice is merged, as
// protobuf does.
func parseTopic(message, before []byte) ([]byte, error) {
	raw := before
	m := wire.Read(message)
	for m.Next() {
		if m.IsBytes(topicBytes) {
			raw = m.Bytes()
		}
	}
	return raw, m.Err()
}

func parseCursor(message []byte, before uint64) (uint64, error) {
	id := before
	m := wire.Read(message)
	for m.Next() {
		if m.IsVarint(cursorID) {
			id = m.Varint()
		}
	}
	return id, m.Err()
}

// topicList is the distinct topics of a request in the order of first mention.
type topicList struct {
	topics  []topic.Topic
	cursors []topic.SequenceID
	read    int
	places  map[topic.Topic]int
}

func newTopicList(count int) *topicList {
	l := &topicList{topics: make([]topic.Topic, 0, count), cursors: make([]topic.SequenceID, 0, count)}
	if count > 1 {
		l.places = make(map[topic.Topic]int, count)
	}
	return l
}

// add coalesces repeated topics at their lowest cursor (API-077, API-084).
func (l *topicList) add(name topic.Topic, cursor topic.SequenceID) {
	l.read++
	if place, again := l.places[name]; again {
		l.cursors[place] = min(l.cursors[place], cursor)
		return
	}
	if l.places != nil {
		l.places[name] = len(l.topics)
	}
	l.topics = append(l.topics, name)
	l.cursors = append(l.cursors, cursor)
}

// rotate starts the list somewhere else: when a page has fewer rows than there
// are topics, those at the end would otherwise wait until those at the beginning
// are drained.
func (l *topicList) rotate() {
	by := rand.IntN(len(l.topics))
	l.topics = slices.Concat(l.topics[by:], l.topics[:by])
	l.cursors = slices.Concat(l.cursors[by:], l.cursors[:by])
}
