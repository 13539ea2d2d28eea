package program_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/program"
)

func TestArguments(t *testing.T) {
	p := program.Program{
		Name: "publisher", Version: "1.2.3", About: "stores envelopes.",
		Commands: []program.Command{{Name: "migrate", About: "applies the schema"}},
	}
	for name, c := range map[string]struct {
		args     []string
		code     int
		done     bool
		out, err string // parts
	}{
		"none":                  {nil, 0, false, "", ""},
		"a command":             {[]string{"migrate"}, 0, false, "", ""},
		"a command and more":    {[]string{"migrate", "--now"}, 2, true, "", `publisher: the arguments are ["migrate" "--now"], expected migrate, --help, --version or nothing`},
		"the version":           {[]string{"--version"}, 0, true, "publisher 1.2.3\n", ""},
		"help":                  {[]string{"--help"}, 0, true, "publisher stores envelopes.", ""},
		"help, short":           {[]string{"-h"}, 0, true, "docs/configuration.md", ""},
		"help with the command": {[]string{"--help"}, 0, true, "publisher migrate        applies the schema\n", ""},
		"unknown":               {[]string{"--listen=:1"}, 2, true, "", `["--listen=:1"]`},
		"empty":                 {[]string{""}, 2, true, "", `[""]`},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut strings.Builder
			code, done := p.Answer(c.args, &out, &errOut)
			require.Equal(t, c.code, code)
			require.Equal(t, c.done, done)
			require.Contains(t, out.String(), c.out)
			require.Equal(t, c.out == "", out.String() == "")
			require.Contains(t, errOut.String(), c.err)
			require.Equal(t, c.err == "", errOut.String() == "")
		})
	}
}
