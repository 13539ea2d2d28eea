package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/xmtp-selfhosted/backend/cmd/xmtpctl/check"
)

func (a *app) checkCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "check",
		Short: "Look through what is stored in the database; writes nothing",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("what to check is missing, expected: check identity")
		},
	}
	command.AddCommand(a.checkIdentityCommand())
	return command
}

// progressEvery is how often a long check says how far it is.
const progressEvery = 5 * time.Second

func (a *app) checkIdentityCommand() *cobra.Command {
	url := os.Getenv("XMTP_PRIMARY_URL")
	command := &cobra.Command{
		Use:   "identity",
		Short: "List the inboxes whose log today's clients refuse; fails when there are any",
		Long: `Clients check the whole log of an inbox by the rules of today and refuse all of it
when one update is against them. The backend takes such updates no longer, but a log
may hold some from before. This lists the inboxes, each with its first such update:
their owners have to create new ones. It reads the database, or a replica, and writes
nothing; signatures of contract wallets are taken to be good, no chain is asked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if url == "" {
				return errors.New("the database is missing, expected --primary-url or XMTP_PRIMARY_URL")
			}
			said := time.Now()
			done, err := check.Identity(cmd.Context(), url, a.refusedInbox, func(p check.Progress) {
				if time.Since(said) >= progressEvery {
					said = time.Now()
					fmt.Fprintf(cmd.ErrOrStderr(), "  %d of %d inboxes, %d refused\n", p.Inboxes, p.Of, p.Refused)
				}
			})
			if err != nil {
				return err
			}
			return a.checkedInboxes(done)
		},
	}
	command.Flags().StringVar(&url, "primary-url", url, "URL of the database or of a replica; $XMTP_PRIMARY_URL if it is not given")
	command.Flags().Lookup("primary-url").DefValue = "" // which may hold a password
	return command
}

func (a *app) refusedInbox(inbox check.Refused) error {
	if a.json {
		return json.NewEncoder(a.out).Encode(inbox)
	}
	_, err := fmt.Fprintf(a.out, "%s  update %d, sequence id %d: %s\n", inbox.InboxID, inbox.Place, inbox.SequenceID, inbox.Problem)
	return err
}

func (a *app) checkedInboxes(done check.Progress) error {
	if a.json {
		if err := json.NewEncoder(a.out).Encode(map[string]int{"inboxes": done.Inboxes, "refused": done.Refused}); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintf(a.out, "%d inboxes checked, clients refuse %d of them\n", done.Inboxes, done.Refused); err != nil {
		return err
	}
	if done.Refused > 0 {
		return fmt.Errorf("clients refuse the logs of %d inboxes", done.Refused)
	}
	return nil
}
