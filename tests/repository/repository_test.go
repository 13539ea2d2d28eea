// Package repository_test checks the tree itself: that its pages are found, and
// that what the forge reads knows all of its parts.
package repository_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// link is a link of a page to another one.
var link = regexp.MustCompile(`\]\(([^)\s#]+\.md)(?:#[\w-]+)?\)`)

// read returns a file of the tree.
func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(content)
}

// find returns the files below a folder whose name matches, by their place in the
// tree.
func find(t *testing.T, folder, pattern string) (files []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".data") {
			return filepath.SkipDir
		}
		if matched, err := path.Match(pattern, d.Name()); d.IsDir() || err != nil || !matched {
			return err
		}
		relative, err := filepath.Rel(root, file)
		files = append(files, filepath.ToSlash(relative))
		return err
	}))
	require.NotEmpty(t, files)
	return files
}

// linked are the pages of the tree that a page links to.
func linked(t *testing.T, from string) (pages []string) {
	t.Helper()
	for _, found := range link.FindAllStringSubmatch(read(t, from), -1) {
		if !strings.Contains(found[1], "://") {
			pages = append(pages, path.Join(path.Dir(from), found[1]))
		}
	}
	return pages
}

func TestEveryPageIsTwoClicksFromTheIndex(t *testing.T) {
	const index = "docs/README.md"
	reached := map[string]bool{index: true}
	for _, first := range linked(t, index) {
		reached[first] = true
		for _, second := range linked(t, first) {
			reached[second] = true
		}
	}
	for _, page := range find(t, "docs", "*.md") {
		require.True(t, reached[page], "%s is more than two clicks from %s", page, index)
	}
}

func TestDependabotWatchesEveryModule(t *testing.T) {
	watched := read(t, ".github/dependabot.yml")
	for _, file := range find(t, ".", "go.mod") {
		require.Contains(t, watched, "\n      - /"+path.Dir(file)+"\n")
	}
	for _, file := range find(t, ".", "package.json") {
		require.Contains(t, watched, "directory: /"+path.Dir(file)+"\n")
	}
}

func TestTheForgeRunsWhatAContributorRuns(t *testing.T) {
	var commands []string
	for _, file := range find(t, ".github/workflows", "*.yaml") {
		for _, found := range regexp.MustCompile(`(?m)^\s*- run: (.*)$`).FindAllStringSubmatch(read(t, file), -1) {
			commands = append(commands, found[1])
		}
		for _, found := range regexp.MustCompile(`uses: (.*)`).FindAllStringSubmatch(read(t, file), -1) {
			require.Regexp(t, `@v\d+\.\d+\.\d+$`, found[1], "an action is pinned by its whole version")
		}
	}
	require.ElementsMatch(t, []string{"make check", "make test"}, commands)
	require.Contains(t, read(t, ".ci/run"), "make check test")
}
