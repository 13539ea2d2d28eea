package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// text is where people write: files whose citations are checked.
var text = []string{".go", ".sql", ".md", ".proto", ".yaml", ".yml", ".sh", ".js", ".html"}

// elsewhere are folders that are generated, or that talk about citations.
var elsewhere = []string{"proto/gen", "cmd/requirementsdoc", "docs/requirements.md"}

// absent are the ways to cite a paper that is not in the tree. What is between two
// words may be the end of a line of a comment.
var absent = []struct {
	form *regexp.Regexp
	say  string
}{
	{regexp.MustCompile(`(?i)\bthe\s+specification\b`), "name the requirement, such as API-036"},
	{regexp.MustCompile(`(?i)\bcontract[\s-]notes\b`), "link to docs/design.md"},
	{regexp.MustCompile(`(?i)\bdesign,?\s+section\b`), "link to docs/design.md with an anchor"},
	{regexp.MustCompile(`(?i)\bthe\s+reference,\s+section\b`), "link to docs/validation.md"},
	{regexp.MustCompile(`\b(backend-api\.txt|contract-notes\.md|identity-admission\.md|faults\.md)`), "link to a page of docs"},
	{regexp.MustCompile(`\([A-H]\d{1,2}\)`), "say what went wrong; its number means nothing here"},
	{regexp.MustCompile(`(?i)\bsections?\s+\d+(\.\d+)*\b`), "sections have names here; numbers are for RFCs"},
}

var (
	rfc       = regexp.MustCompile(`\bRFC\s+\d+[^.]{0,20}$`)
	invariant = regexp.MustCompile(`\bI\d{1,2}\b`)
	page      = regexp.MustCompile(`\bdocs/[\w/-]+\.md(#[\w-]+)?`)
	link      = regexp.MustCompile(`\]\(([^)\s]+\.md)?(#[\w-]+)?\)`)
	lineEnd   = regexp.MustCompile(`\n[ \t]*(//|--|#|\*)?[ \t]*`)
)

// citations fails with each place below the root that cites what is not there: a
// paper by another name than that of a page, a page or an anchor that does not
// exist, a requirement or invariant that is not in the list.
func citations(root string, l *requirements) error {
	c := &citer{root: root, list: l, anchors: map[string]map[string]bool{}}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		relative = filepath.ToSlash(relative)
		if d.IsDir() && skipped[d.Name()] || slices.Contains(elsewhere, relative) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() || !slices.Contains(text, path.Ext(file)) {
			return nil
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		c.check(relative, string(content))
		return nil
	})
	return errors.Join(append(c.wrong, err)...)
}

// citer collects what is wrong.
type citer struct {
	root    string
	list    *requirements
	anchors map[string]map[string]bool // of each page that was looked at
	wrong   []error
}

// complain says where the citation from one byte to another is, and what is wrong.
func (c *citer) complain(file, content string, span []int, what string) {
	line := 1 + strings.Count(content[:span[0]], "\n")
	cited := strings.Join(strings.Fields(content[span[0]:span[1]]), " ")
	c.wrong = append(c.wrong, fmt.Errorf("%s:%d: %q: %s", file, line, cited, what))
}

func (c *citer) check(file, content string) {
	joined := lineEnd.ReplaceAllStringFunc(content, func(s string) string { return "\n" + strings.Repeat(" ", len(s)-1) })
	for _, a := range absent {
		for _, span := range a.form.FindAllStringIndex(joined, -1) {
			if !rfc.MatchString(joined[max(0, span[0]-40):span[0]]) {
				c.complain(file, joined, span, a.say)
			}
		}
	}
	for _, span := range identifier.FindAllStringIndex(content, -1) {
		if id := content[span[0]:span[1]]; c.isOurs(file, id) && c.list.byAnchor[strings.ToLower(id)] == nil &&
			c.list.byAnchor[strings.ToLower(id)+"-client"] == nil {
			c.complain(file, content, span, "no such requirement in cmd/requirementsdoc/requirements.txt")
		}
	}
	if path.Ext(file) != ".md" {
		for _, span := range page.FindAllStringIndex(content, -1) {
			name, anchor, _ := strings.Cut(content[span[0]:span[1]], "#")
			c.follow(file, content, span, name, anchor)
		}
		return
	}
	for _, span := range link.FindAllStringSubmatchIndex(content, -1) {
		name, anchor := file, ""
		if span[2] >= 0 {
			if name = content[span[2]:span[3]]; strings.Contains(name, "://") {
				continue
			}
			name = path.Join(path.Dir(file), name)
		}
		if span[4] >= 0 {
			anchor = content[span[4]+1 : span[5]]
		}
		c.follow(file, content, span, name, anchor)
	}
}

// isOurs reports whether an identifier is of the kinds in the list: others, such
// as ERC-191, are somebody else's.
func (c *citer) isOurs(file, id string) bool {
	if invariant.MatchString(id) {
		return slices.Contains([]string{".go", ".sql", ".md"}, path.Ext(file))
	}
	prefix, _, _ := strings.Cut(id, "-")
	for anchor := range c.list.byAnchor {
		if strings.HasPrefix(anchor, strings.ToLower(prefix)+"-") {
			return true
		}
	}
	return false
}

// follow checks that a page exists and has the anchor, if one is named.
func (c *citer) follow(file, content string, span []int, name, anchor string) {
	if c.anchors[name] == nil {
		written, err := os.ReadFile(filepath.Join(c.root, name))
		if err != nil {
			c.complain(file, content, span, "no such page")
			return
		}
		c.anchors[name] = anchorsOf(string(written))
	}
	if anchor != "" && !c.anchors[name][anchor] {
		c.complain(file, content, span, "the page has no such anchor")
	}
}

var (
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	explicit = regexp.MustCompile(`<a id="([\w-]+)">`)
	dropped  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchorsOf are the anchors of a page: those it states, and those that the forge
// makes of its headings.
func anchorsOf(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, found := range explicit.FindAllStringSubmatch(text, -1) {
		anchors[found[1]] = true
	}
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		anchors[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-")] = true
	}
	return anchors
}
