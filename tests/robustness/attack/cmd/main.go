// Command cmd carries out one attack on a gateway of this machine and prints what
// the attackers saw, as JSON.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/tests/robustness/attack"
)

func main() {
	var target attack.Target
	var page string
	list := flag.Bool("list", false, "print all attacks")
	name := flag.String("attack", "", "the name of an attack")
	duration := flag.Duration("for", 10*time.Second, "how long")
	flag.StringVar(&target.Address, "target", "127.0.0.1:5050", "a gateway of this machine")
	flag.BoolVar(&target.TLS, "tls", false, "the target speaks HTTPS")
	flag.StringVar(&page, "topic", "", "a topic with some MiB of envelopes, in hex")
	flag.Parse()
	if *list {
		for _, a := range attack.All() {
			fmt.Printf("%-22s %-8s %s\n", a.Name, a.Faults, a.What)
		}
		return
	}
	if err := run(*name, target, page, *duration); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func run(name string, target attack.Target, page string, duration time.Duration) error {
	a, err := attack.Named(name)
	if err != nil {
		return err
	}
	raw, err := hex.DecodeString(page)
	if err != nil {
		return err
	}
	if target.Topic, err = topic.Parse(raw); err != nil {
		return err
	}
	outcome, err := a.Run(context.Background(), target, duration)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(outcome)
}
