package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/xmtp-selfhosted/backend/cmd/xmtpctl/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	patience := 5 * time.Second
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check configuration, databases, bus, chains and the public endpoint; fails when something is wrong",
		Long: `Reads the variables of the roles (docs/configuration.md) and looks at everything they name, and at the
gateway at --endpoint. Says what is wrong and what to do. It writes nothing anywhere.`,
		Args: cobra.NoArgs,
		RunE: a.with(func(cmd *cobra.Command, connection *grpc.ClientConn, _ []string) error {
			environment := map[string]string{}
			for _, entry := range os.Environ() {
				if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "XMTP_") {
					environment[name] = value
				}
			}
			return a.diagnosis(doctor.Run(cmd.Context(), doctor.Options{Environment: environment, Endpoint: connection, Patience: patience}))
		}),
	}
	command.Flags().DurationVar(&patience, "patience", patience, "how long to wait for each answer")
	return command
}

// diagnosis prints the findings and fails when something is wrong.
func (a *app) diagnosis(findings []doctor.Finding) error {
	wrong := 0
	for _, finding := range findings {
		if finding.State == doctor.Bad {
			wrong++
		}
		if a.json {
			encoded, err := json.Marshal(finding)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.out, string(encoded))
			continue
		}
		fmt.Fprintf(a.out, "%-8s %-14s %s\n", finding.State, finding.Area, finding.Found)
		if finding.Do != "" {
			fmt.Fprintf(a.out, "%-8s %-14s → %s\n", "", "", finding.Do)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d things are wrong", wrong)
	}
	return nil
}
