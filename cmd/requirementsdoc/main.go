// Command requirementsdoc writes docs/requirements.md: each requirement in one
// sentence, and the tests that prove it. The sentences are in requirements.txt; a
// test is named there, or names the requirement itself in its comment:
//
//	// Proves API-036, API-037.
//
//	go run ./cmd/requirementsdoc -write    writes the file
//	go run ./cmd/requirementsdoc -check    fails when it is not what would be written
//	go run ./cmd/requirementsdoc -papers   fails when the tree cites what is not in it
//
// Writing and checking fail when a requirement on the backend has no test, when a
// test that is named does not exist, and when a test proves what nobody requires.
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// list has the requirements; its first lines explain its form.
//
//go:embed requirements.txt
var list string

// file is where the page is, below the root.
const file = "docs/requirements.md"

func main() {
	write := flag.Bool("write", false, "write "+file)
	check := flag.Bool("check", false, "fail when "+file+" is not fresh")
	papers := flag.Bool("papers", false, "fail when a file cites a page, an anchor or a requirement that the tree does not have")
	root := flag.String("root", ".", "top of the repository")
	flag.Parse()
	if err := run(*root, *write, *check, *papers); err != nil {
		fmt.Fprintln(os.Stderr, "requirementsdoc:", err)
		os.Exit(1)
	}
}

func run(root string, write, check, papers bool) error {
	if !write && !check && !papers {
		return errors.New("expected -write, -check or -papers")
	}
	l, err := parse(list)
	if err != nil {
		return err
	}
	if papers {
		if err := citations(root, l); err != nil {
			return err
		}
	}
	if !write && !check {
		return nil
	}
	tests, err := findTests(root)
	if err != nil {
		return err
	}
	if err := l.prove(tests); err != nil {
		return err
	}
	rendered := render(l)
	target := filepath.Join(root, file)
	if write {
		return os.WriteFile(target, rendered, 0o644)
	}
	written, err := os.ReadFile(target)
	if err != nil {
		return fmt.Errorf("read the page: %w", err)
	}
	if !bytes.Equal(written, rendered) {
		return fmt.Errorf("%s is not what the list and the tests say: run go run ./cmd/requirementsdoc -write and commit the result", file)
	}
	return nil
}

// render returns the page as Markdown.
func render(l *requirements) []byte {
	var b bytes.Buffer
	b.WriteString("# Requirements\n\n<!-- Written by cmd/requirementsdoc from its requirements.txt and the comments of tests; change those. -->\n")
	for _, s := range l.sections {
		fmt.Fprintf(&b, "\n## %s\n", s.title)
		if s.intro != "" {
			fmt.Fprintf(&b, "\n%s\n", s.intro)
		}
		if len(s.entries) == 0 {
			continue
		}
		proven := s.entries[0].binds == backend
		if proven {
			b.WriteString("\n| | requirement | proved by |\n| --- | --- | --- |\n")
		} else {
			b.WriteString("\n| | requirement |\n| --- | --- |\n")
		}
		for _, e := range s.entries {
			fmt.Fprintf(&b, "| <a id=\"%s\"></a>%s | %s |", e.anchor(), e.id, e.text)
			if proven {
				fmt.Fprintf(&b, " %s |", links(e.proofs))
			}
			b.WriteString("\n")
		}
	}
	return b.Bytes()
}

// links names tests, each with a link to its file.
func links(proofs []test) string {
	texts := make([]string, len(proofs))
	for i, p := range proofs {
		texts[i] = fmt.Sprintf("[`%s`](../%s)", p.name, p.file)
	}
	return strings.Join(texts, "<br>")
}
