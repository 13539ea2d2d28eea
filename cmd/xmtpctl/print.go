package main

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// describe is what a person reads of a failure: the code, the text, and of a
// refused publish the reason and the envelope.
func describe(err error) string {
	failure, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	text := strings.Builder{}
	fmt.Fprintf(&text, "%s: %s", failure.Code(), failure.Message())
	for _, detail := range failure.Details() {
		if refused, ok := detail.(*backendv1.PublishError); ok {
			fmt.Fprintf(&text, "\n  reason  %s", strings.TrimPrefix(refused.GetReason().String(), "REASON_"))
			if refused.Index != nil {
				fmt.Fprintf(&text, "\n  index   %d (the first failing envelope of the request)", refused.GetIndex())
			}
		}
	}
	return text.String()
}

// message prints one protobuf message as a line of JSON.
func (a *app) message(m proto.Message) error {
	encoded, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, string(encoded))
	return err
}

// meta prints the metadata of an envelope, readable or as JSON.
func (a *app) meta(meta *backendv1.EnvelopeMeta) error {
	if a.json {
		return a.message(meta)
	}
	_, err := fmt.Fprintln(a.out, metaLine(meta))
	return err
}

// envelope prints an envelope, readable or as JSON.
func (a *app) envelope(e *backendv1.ServerEnvelope) error {
	if a.json {
		return a.message(e)
	}
	_, err := fmt.Fprintf(a.out, "%s  %6d bytes\n", metaLine(e.GetMeta()), proto.Size(e.GetEnvelope()))
	return err
}

func metaLine(meta *backendv1.EnvelopeMeta) string {
	name := meta.GetTopic().GetTopic()
	kind := "unknown"
	if parsed, err := topic.Parse(name); err == nil {
		kind = parsed.Kind().String()
	}
	flags := ""
	if meta.GetIsCommitOrProposal() {
		flags = " (commit or proposal)"
	}
	return fmt.Sprintf("%10d  %s  %s  %s%s", meta.GetCursor().GetSequenceId(),
		time.Unix(0, int64(meta.GetServerNs())).UTC().Format("2006-01-02T15:04:05.000000Z"), hex.EncodeToString(name), kind, flags)
}

// parseTopic reads a topic in hex, optionally followed by @ and a cursor.
func parseTopic(argument string) (*backendv1.TopicQuery, error) {
	name, after, hasCursor := strings.Cut(argument, "@")
	raw, err := hex.DecodeString(name)
	if err != nil {
		return nil, fmt.Errorf("topic %q is not hex, expected a kind byte and an identifier such as 00%s", name, strings.Repeat("ab", 16))
	}
	query := &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: raw}}
	if hasCursor {
		query.Cursor = &backendv1.Cursor{}
		if _, err := fmt.Sscan(after, &query.Cursor.SequenceId); err != nil {
			return nil, fmt.Errorf("cursor %q is not a number", after)
		}
	}
	return query, nil
}

func parseTopics(arguments []string) ([]*backendv1.TopicQuery, error) {
	var queries []*backendv1.TopicQuery
	for _, argument := range arguments {
		query, err := parseTopic(argument)
		if err != nil {
			return nil, err
		}
		queries = append(queries, query)
	}
	return queries, nil
}
