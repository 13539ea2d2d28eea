package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/cmd/replay"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

func (a *app) publishCommand() *cobra.Command {
	recorded := false
	command := &cobra.Command{
		Use:   "publish [FILE ...]",
		Short: "Publish envelopes from files in one request, or the recorded session",
		Long: `Publish stores all envelopes or none. Each file holds one ClientEnvelope: protobuf,
or JSON when its name ends in .json. With --recorded the session of real clients
that is built into this program is sent, in its own order and grouping.`,
		RunE: a.with(func(cmd *cobra.Command, connection *grpc.ClientConn, args []string) error {
			if recorded == (len(args) > 0) {
				return errors.New("expected files, or --recorded, but not both")
			}
			if recorded {
				return a.publishRecorded(cmd, connection)
			}
			return a.publishFiles(cmd, connection, args)
		}),
	}
	command.Flags().BoolVar(&recorded, "recorded", false, "publish the recorded session")
	return command
}

func (a *app) publishFiles(cmd *cobra.Command, connection *grpc.ClientConn, files []string) error {
	request := &backendv1.PublishRequest{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		decode := proto.Unmarshal
		if strings.HasSuffix(file, ".json") {
			decode = protojson.Unmarshal
		}
		envelope := &backendv1.ClientEnvelope{}
		if err := decode(content, envelope); err != nil {
			return fmt.Errorf("%s is not a ClientEnvelope: %w", file, err)
		}
		request.Envelopes = append(request.Envelopes, envelope)
	}
	return a.publish(cmd, connection, request)
}

func (a *app) publishRecorded(cmd *cobra.Command, connection *grpc.ClientConn) error {
	plan, err := replay.Recorded()
	if err != nil {
		return err
	}
	for i, items := range plan.Requests {
		request := &backendv1.PublishRequest{}
		for _, item := range items {
			request.Envelopes = append(request.Envelopes, item.Envelope)
		}
		if err := a.publish(cmd, connection, request); err != nil {
			return fmt.Errorf("request %d, which begins with %s: %w", i+1, items[0].Name, err)
		}
	}
	return nil
}

func (a *app) publish(cmd *cobra.Command, connection *grpc.ClientConn, request *backendv1.PublishRequest) error {
	response, err := backendv1.NewPublishServiceClient(connection).Publish(cmd.Context(), request)
	if err != nil {
		return err
	}
	for _, meta := range response.GetEnvelopeMetas() {
		if err := a.meta(meta); err != nil {
			return err
		}
	}
	return nil
}
