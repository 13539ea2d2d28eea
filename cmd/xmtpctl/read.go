package main

import (
	"encoding/hex"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

const topicHelp = "Topics are hex: a kind byte (00 group message, 01 welcome, 02 identity update, 03 key package,\n04 commit log) and the identifier."

func (a *app) queryCommand() *cobra.Command {
	limit, all := uint32(0), false
	command := &cobra.Command{
		Use:   "query TOPIC[@CURSOR] ...",
		Short: "Read the envelopes above a cursor, oldest first",
		Long:  "Query reads from the primary. " + topicHelp,
		Args:  cobra.MinimumNArgs(1),
		RunE: a.with(func(cmd *cobra.Command, connection *grpc.ClientConn, args []string) error {
			queries, err := parseTopics(args)
			if err != nil {
				return err
			}
			client := backendv1.NewQueryServiceClient(connection)
			for {
				page, err := client.Query(cmd.Context(), &backendv1.QueryRequest{Queries: queries, Limit: limit})
				if err != nil {
					return err
				}
				for _, envelope := range page.GetEnvelopes() {
					if err := a.envelope(envelope); err != nil {
						return err
					}
				}
				if !page.GetContinuation().GetHasMore() {
					return nil
				}
				if !all {
					fmt.Fprintln(cmd.ErrOrStderr(), "There is more: use --all, or the last sequence id of each topic as its cursor.")
					return nil
				}
				advance(queries, page.GetEnvelopes())
			}
		}),
	}
	command.Flags().Uint32Var(&limit, "limit", 0, "envelopes a page at most; 0 takes the backend's default")
	command.Flags().BoolVar(&all, "all", false, "go on until nothing is left")
	return command
}

// advance moves the cursor of each topic that returned rows (API-074).
func advance(queries []*backendv1.TopicQuery, envelopes []*backendv1.ServerEnvelope) {
	last := map[string]*backendv1.Cursor{}
	for _, envelope := range envelopes {
		last[string(envelope.GetMeta().GetTopic().GetTopic())] = envelope.GetMeta().GetCursor()
	}
	for _, query := range queries {
		if cursor := last[string(query.GetTopic().GetTopic())]; cursor != nil {
			query.Cursor = cursor
		}
	}
}

func (a *app) newestCommand() *cobra.Command {
	full := false
	command := &cobra.Command{
		Use:   "newest TOPIC ...",
		Short: "Read the newest envelope of each topic",
		Long:  "Newest may read from a replica, which can lag. A topic without an envelope is left out. " + topicHelp,
		Args:  cobra.MinimumNArgs(1),
		RunE: a.with(func(cmd *cobra.Command, connection *grpc.ClientConn, args []string) error {
			queries, err := parseTopics(args)
			if err != nil {
				return err
			}
			request := &backendv1.QueryNewestRequest{IncludeFullEnvelope: full}
			for _, query := range queries {
				request.Topics = append(request.Topics, query.GetTopic())
			}
			response, err := backendv1.NewQueryServiceClient(connection).QueryNewest(cmd.Context(), request)
			if err != nil {
				return err
			}
			for _, result := range response.GetResults() {
				if err := a.result(result, full); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	command.Flags().BoolVar(&full, "full", false, "read the envelopes, not only their metadata")
	return command
}

// result prints the newest envelope of a topic, or its metadata alone.
func (a *app) result(newest *backendv1.QueryNewestResponse_Result, full bool) error {
	if !full {
		return a.meta(newest.GetMeta())
	}
	return a.envelope(&backendv1.ServerEnvelope{Meta: newest.GetMeta(), Envelope: newest.GetEnvelope()})
}

func (a *app) inboxCommand() *cobra.Command {
	passkey := false
	command := &cobra.Command{
		Use:   "inbox IDENTIFIER ...",
		Short: "Find the inbox that an address or a passkey belongs to",
		Args:  cobra.MinimumNArgs(1),
		RunE: a.with(func(cmd *cobra.Command, connection *grpc.ClientConn, args []string) error {
			kind := associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM
			if passkey {
				kind = associations.IdentifierKind_IDENTIFIER_KIND_PASSKEY
			}
			request := &backendv1.GetInboxIdsRequest{}
			for _, identifier := range args {
				request.Requests = append(request.Requests, &backendv1.GetInboxIdsRequest_Request{Identifier: identifier, IdentifierKind: kind})
			}
			response, err := backendv1.NewIdentityServiceClient(connection).GetInboxIds(cmd.Context(), request)
			if err != nil {
				return err
			}
			for _, found := range response.GetResponses() {
				if a.json {
					if err := a.message(found); err != nil {
						return err
					}
					continue
				}
				inbox := "no inbox"
				if found.InboxId != nil {
					inbox = found.GetInboxId()
				}
				fmt.Fprintf(a.out, "%s  %s\n", found.GetIdentifier(), inbox)
			}
			return nil
		}),
	}
	command.Flags().BoolVar(&passkey, "passkey", false, "the identifiers are passkeys in hex")
	return command
}

func (a *app) configCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "config",
		Short: "Show what the backend publishes about itself: limits, retention, chains",
		Args:  cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, connection *grpc.ClientConn, _ []string) error {
			response, err := backendv1.NewConfigurationServiceClient(connection).GetConfiguration(cmd.Context(), &backendv1.GetConfigurationRequest{})
			if err != nil {
				return err
			}
			if a.json {
				return a.message(response)
			}
			fmt.Fprintln(a.out, protojson.Format(response))
			return nil
		}),
	}
}

func (a *app) healthCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "health",
		Short: "Ask every service how it is; fails when one does not serve",
		Args:  cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, connection *grpc.ClientConn, _ []string) error {
			response, err := healthv1.NewHealthClient(connection).List(cmd.Context(), &healthv1.HealthListRequest{})
			if err != nil {
				return err
			}
			if a.json {
				if err := a.message(response); err != nil {
					return err
				}
			}
			failing := 0
			for _, service := range sortedKeys(response.GetStatuses()) {
				state := response.GetStatuses()[service].GetStatus()
				if state != healthv1.HealthCheckResponse_SERVING {
					failing++
				}
				if a.json {
					continue
				}
				label := service
				if label == "" {
					label = "(the backend as a whole)"
				}
				fmt.Fprintf(a.out, "%-12s %s\n", state, label)
			}
			if failing > 0 {
				return fmt.Errorf("%d services do not serve", failing)
			}
			return nil
		}),
	}
}

// shortHex is the beginning of some bytes, for progress lines.
func shortHex(raw []byte) string {
	return hex.EncodeToString(raw[:min(len(raw), 6)])
}
