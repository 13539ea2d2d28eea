package report

import (
	"fmt"
	"os"
	"strings"
)

// ReplaceSection replaces what stands between the marks of a section in a document,
// <!-- name: begin --> and <!-- name: end -->, each a line.
func ReplaceSection(document, name, text string) error {
	content, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+": begin -->\n", "<!-- "+name+": end -->\n"
	before, rest, found := strings.Cut(string(content), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s has no section between %q and %q", document, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(document, []byte(before+begin+text+end+after), 0o644)
}
