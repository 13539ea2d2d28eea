package main

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/wallet"
	"github.com/xmtp-selfhosted/backend/services/gateway"
	"github.com/xmtp-selfhosted/backend/services/publisher"
)

// titles are the headings of the structs that several lines or roles share.
// Variables of other structs stand under their role's or package's name.
var titles = map[reflect.Type]string{
	reflect.TypeFor[limit.Config]():            "Limits",
	reflect.TypeFor[limit.Retention]():         "Retention",
	reflect.TypeFor[rpc.Config]():              "Shutdown",
	reflect.TypeFor[store.PoolConfig]():        "Database connections",
	reflect.TypeFor[notice.Config]():           "Bus",
	reflect.TypeFor[wallet.Config]():           "Chains",
	reflect.TypeFor[publisher.GroupConfig]():   "Group commit",
	reflect.TypeFor[gateway.PublishedConfig](): "Published to clients",
	reflect.TypeFor[gateway.FrontConfig]():     "Public port",
}

const head = `# Configuration

Every role reads its configuration from environment variables, once, at its start. A wrong or missing value stops the start
with the name of the variable; several are named at once. A variable that a role does not read does no harm, so the same
set can be given to all. A limit must have the same value in every role: the chart, the compose file and the dev stack set each once.

Durations are written like ` + "`250ms`, `30s`, `5m`, `2160h`" + `. Sizes are in bytes. Secrets are never logged.

This page is generated from the configuration structs (` + "`go run ./cmd/configdoc -write`" + `); ` + "`make check`" + ` keeps it current.
`

// render returns the reference as Markdown.
func render(root string) ([]byte, error) {
	variables, err := collect(&comments{root: root, structs: map[string]map[string]string{}})
	if err != nil {
		return nil, err
	}
	var order []string
	sections := map[string][]*variable{}
	for _, v := range variables {
		title := titleOf(v)
		if sections[title] == nil {
			order = append(order, title)
		}
		sections[title] = append(sections[title], v)
	}
	out := bytes.NewBufferString(head)
	for _, title := range order {
		fmt.Fprintf(out, "\n## %s\n\n| variable | roles | default | value | meaning |\n| --- | --- | --- | --- | --- |\n", title)
		for _, v := range sections[title] {
			fmt.Fprintf(out, "| `%s` | %s | %s | %s | %s |\n", v.name, rolesOf(v.roles), v.defaultText(), v.form, v.meaning())
		}
	}
	return out.Bytes(), nil
}

func titleOf(v *variable) string {
	if title, named := titles[v.owner]; named {
		return title
	}
	path := v.owner.PkgPath()
	switch name := path[strings.LastIndex(path, "/")+1:]; {
	case len(v.roles) > 1 && strings.Contains(path, "/services/"):
		return "Addresses"
	case strings.HasSuffix(v.name, "_URL"), strings.HasSuffix(v.name, "_ENDPOINT"), strings.HasSuffix(v.name, "_LISTEN"):
		return "Addresses"
	default:
		return capital(name)
	}
}

func (v *variable) defaultText() string {
	switch {
	case len(v.required) == len(v.roles):
		return "required"
	case len(v.required) > 0:
		return "required by " + strings.Join(v.required, ", ")
	case v.fallback == "":
		return ""
	}
	return "`" + v.fallback + "`"
}

func (v *variable) meaning() string {
	if len(v.meanings) == 1 {
		return capital(cell(v.meanings[0].text))
	}
	var parts []string
	for _, m := range v.meanings {
		parts = append(parts, rolesOf(m.roles)+": "+cell(m.text))
	}
	return strings.Join(parts, "<br>")
}

// rolesOf writes "all" for all roles.
func rolesOf(names []string) string {
	if len(names) == len(roles) {
		return "all"
	}
	return strings.Join(slices.Clone(names), ", ")
}

// cell makes a comment fit a table's cell: no bar, no full stop.
func cell(text string) string {
	return strings.ReplaceAll(strings.TrimSuffix(text, "."), "|", "\\|")
}

func capital(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}
