package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

func (a *app) tailCommand() *cobra.Command {
	static, catchUp := false, false
	command := &cobra.Command{
		Use:   "tail TOPIC[@CURSOR] ...",
		Short: "Follow topics: first what is stored above the cursor, then what comes",
		Long:  "Tail uses the bidirectional stream, or with --static the one for clients that cannot send while they receive. " + topicHelp,
		Args:  cobra.MinimumNArgs(1),
		RunE: a.with(func(cmd *cobra.Command, connection *grpc.ClientConn, args []string) error {
			queries, err := parseTopics(args)
			if err != nil {
				return err
			}
			t := &tail{app: a, log: cmd.ErrOrStderr(), left: map[string]uint64{}, stopWhenCaughtUp: catchUp}
			client := backendv1.NewSubscriptionServiceClient(connection)
			follow := t.bidirectional
			if static {
				follow = t.static
			}
			err = follow(cmd.Context(), client, queries)
			if errors.Is(err, io.EOF) || (cmd.Context().Err() != nil && status.Code(err) == codes.Canceled) {
				return nil
			}
			return err
		}),
	}
	command.Flags().BoolVar(&static, "static", false, "use the static stream")
	command.Flags().BoolVar(&catchUp, "until-caught-up", false, "stop once everything that was stored at the start has come")
	return command
}

// tail prints a stream and knows when it has caught up.
type tail struct {
	*app
	log io.Writer
	// left has the catch-up target of each topic that is not reached yet.
	left             map[string]uint64
	stopWhenCaughtUp bool
}

func (t *tail) bidirectional(ctx context.Context, client backendv1.SubscriptionServiceClient, queries []*backendv1.TopicQuery) error {
	stream, err := client.Subscribe(ctx)
	if err != nil {
		return err
	}
	update := &backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{
		Update: &backendv1.SubscribeRequest_Update{Id: 1, Adds: queries}}}
	if err := stream.Send(update); err != nil {
		return err
	}
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		switch content := frame.GetResponse().(type) {
		case *backendv1.SubscribeResponse_Started_:
			fmt.Fprintf(t.log, "started, keepalive every %d ms\n", content.Started.GetKeepaliveIntervalMs())
		case *backendv1.SubscribeResponse_Applied_:
			err = t.targets(content.Applied.GetAddedTargets(), queries)
		case *backendv1.SubscribeResponse_Messages_:
			err = t.messages(content.Messages.GetEnvelopes())
		case *backendv1.SubscribeResponse_Ping:
			err = stream.Send(&backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Pong{
				Pong: &backendv1.Pong{Nonce: content.Ping.GetNonce()}}})
		}
		if err != nil {
			return err
		}
	}
}

func (t *tail) static(ctx context.Context, client backendv1.SubscriptionServiceClient, queries []*backendv1.TopicQuery) error {
	stream, err := client.SubscribeStatic(ctx, &backendv1.SubscribeStaticRequest{Topics: queries})
	if err != nil {
		return err
	}
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		switch content := frame.GetResponse().(type) {
		case *backendv1.SubscribeStaticResponse_Started_:
			fmt.Fprintf(t.log, "started, keepalive every %d ms\n", content.Started.GetKeepaliveIntervalMs())
			err = t.targets(content.Started.GetTargets(), queries)
		case *backendv1.SubscribeStaticResponse_Messages_:
			err = t.messages(content.Messages.GetEnvelopes())
		}
		if err != nil {
			return err
		}
	}
}

// targets notes what is owed as history: nothing where the cursor is at or
// above the target (API-097).
func (t *tail) targets(targets []*backendv1.CatchupTarget, queries []*backendv1.TopicQuery) error {
	cursors := map[string]uint64{}
	for _, query := range queries {
		cursors[string(query.GetTopic().GetTopic())] = query.GetCursor().GetSequenceId()
	}
	for _, target := range targets {
		name := string(target.GetTopic().GetTopic())
		fmt.Fprintf(t.log, "topic %s...: catching up through %d\n", shortHex([]byte(name)), target.GetThroughSequenceId())
		if target.GetThroughSequenceId() > cursors[name] {
			t.left[name] = target.GetThroughSequenceId()
		}
	}
	return t.caughtUp()
}

func (t *tail) messages(envelopes []*backendv1.ServerEnvelope) error {
	for _, envelope := range envelopes {
		if err := t.envelope(envelope); err != nil {
			return err
		}
		name := string(envelope.GetMeta().GetTopic().GetTopic())
		if target, waiting := t.left[name]; waiting && envelope.GetMeta().GetCursor().GetSequenceId() >= target {
			delete(t.left, name)
			if err := t.caughtUp(); err != nil {
				return err
			}
		}
	}
	return nil
}

// caughtUp says so once nothing is left, and ends the tail where that was asked.
func (t *tail) caughtUp() error {
	if len(t.left) > 0 {
		return nil
	}
	fmt.Fprintln(t.log, "caught up")
	if t.stopWhenCaughtUp {
		return io.EOF
	}
	return nil
}
