// Package program answers the arguments of a role's program, which takes its
// configuration from the environment.
package program

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Program is what a role's program says of itself.
type Program struct {
	Name, Version string
	// About completes "publisher ...".
	About string
	// Commands are the arguments that the program itself knows what to do with.
	Commands []Command
}

// Command is an argument and what it does.
type Command struct{ Name, About string }

// misused is the exit code of a command line that is not understood.
const misused = 2

// Answer prints what --help and --version ask for, and refuses what is unknown.
// Unless it is done, the program runs: without an argument, or with one that is
// a command. Otherwise it ends with the code.
func (p Program) Answer(args []string, out, errOut io.Writer) (code int, done bool) {
	if len(args) == 0 {
		return 0, false
	}
	if len(args) == 1 {
		switch {
		case slices.ContainsFunc(p.Commands, func(c Command) bool { return c.Name == args[0] }):
			return 0, false
		case args[0] == "--help" || args[0] == "-h":
			fmt.Fprint(out, p.help())
			return 0, true
		case args[0] == "--version":
			fmt.Fprintln(out, p.Name, p.Version)
			return 0, true
		}
	}
	expected := "--help, --version or nothing"
	for _, command := range p.Commands {
		expected = command.Name + ", " + expected
	}
	fmt.Fprintf(errOut, "%s: the arguments are %q, expected %s: the configuration is variables that begin with XMTP_\n", p.Name, args, expected)
	return misused, true
}

func (p Program) help() string {
	var text strings.Builder
	fmt.Fprintf(&text, `%s %s

Its configuration is the environment: variables that begin with XMTP_, all described in docs/configuration.md.

Usage:
  %-24s runs until it is told to stop by SIGTERM
`, p.Name, p.About, p.Name)
	for _, command := range p.Commands {
		fmt.Fprintf(&text, "  %-24s %s\n", p.Name+" "+command.Name, command.About)
	}
	fmt.Fprintf(&text, "  %-24s shows this\n  %-24s shows the version\n", p.Name+" --help", p.Name+" --version")
	return text.String()
}
