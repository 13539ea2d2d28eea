// Command xmtpctl is a client of the backend for people: it publishes, reads,
// follows, and shows that a whole client session passes.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot(os.Stdout).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "xmtpctl:", describe(err))
		os.Exit(1)
	}
}

// app is what the commands share: where the backend is and how to print.
type app struct {
	endpoint      string
	tls           bool
	tlsServerName string
	json          bool
	out           io.Writer
}

// maxMessageBytes leaves room above the backend's own ceiling, so that its
// refusals are seen instead of ours.
const maxMessageBytes = 64 << 20

func newRoot(out io.Writer) *cobra.Command {
	a := &app{out: out}
	root := &cobra.Command{
		Use:           "xmtpctl",
		Short:         "A command-line client of the self-hosted XMTP backend",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.tlsServerName != "" && !a.tls {
				return errors.New("--tls-server-name is given without --tls, expected both")
			}
			return nil
		},
	}
	root.SetOut(out)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.PersistentFlags().StringVar(&a.endpoint, "endpoint", "127.0.0.1:5050", "host:port of the gateway")
	root.PersistentFlags().BoolVar(&a.tls, "tls", false, "use TLS, as for a public endpoint")
	root.PersistentFlags().StringVar(&a.tlsServerName, "tls-server-name", "",
		"with --tls, the name that the server's certificate must have, when it is not that of --endpoint")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, one value a line")
	root.AddCommand(a.publishCommand(), a.queryCommand(), a.newestCommand(), a.tailCommand(), a.inboxCommand(),
		a.configCommand(), a.healthCommand(), a.demoCommand(), a.benchCommand(), a.doctorCommand(), a.checkCommand(), a.versionCommand())
	return root
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of xmtpctl; config shows that of the backend",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return json.NewEncoder(a.out).Encode(map[string]string{"version": version})
			}
			_, err := fmt.Fprintln(a.out, "xmtpctl", version)
			return err
		},
	}
}

// connect opens the connection that one command uses.
func (a *app) connect() (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if a.tls {
		transport = credentials.NewTLS(&tls.Config{ServerName: a.tlsServerName, MinVersion: tls.VersionTLS12})
	}
	connection, err := grpc.NewClient(a.endpoint, grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", a.endpoint, err)
	}
	return connection, nil
}

// with runs a command on a connection.
func (a *app) with(do func(cmd *cobra.Command, connection *grpc.ClientConn, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		connection, err := a.connect()
		if err != nil {
			return err
		}
		defer func() { _ = connection.Close() }()
		return do(cmd, connection, args)
	}
}
