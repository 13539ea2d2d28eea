package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

func TestThePageIsFresh(t *testing.T) {
	require.NoError(t, run(root, false, true, false))
}

func TestAListSaysWhatIsWrongWithIt(t *testing.T) {
	for name, c := range map[string]struct{ list, say string }{
		"nothing before the first section": {"API-001 backend\nIt does.", "line 1 is before the first section"},
		"the same requirement twice":       {"## A\nAPI-001 client\nIt does.\nAPI-001 client\nIt does.", "API-001 is there twice"},
		"two kinds in one section":         {"## A\nAPI-001 client\nIt does.\nAPI-002 backend\nIt does.", "expected one kind in a section"},
	} {
		_, err := parse(c.list)
		require.ErrorContains(t, err, c.say, name)
	}
	_, err := parse("## A\nAPI-001 backend\nIt does.\n## B\nAPI-001 client\nThey do.")
	require.NoError(t, err, "one number may bind both")
}

func TestARequirementNeedsItsTests(t *testing.T) {
	there := test{file: "pkg/a/a_test.go", name: "TestA"}
	saying := test{file: "pkg/a/a_test.go", name: "TestB", proves: []string{"API-001"}}
	for name, c := range map[string]struct {
		list  string
		tests []test
		say   string
	}{
		"no test":                 {"## A\nAPI-001 backend\nIt does.", nil, "API-001 has no test"},
		"a test that is gone":     {"## A\nAPI-001 backend\nIt does.\nby pkg/a.TestZ", []test{there}, "pkg/a.TestZ, which does not exist"},
		"a test in its place":     {"## A\nAPI-001 backend\nIt does.\nby pkg/a.TestA", []test{there}, ""},
		"a test that says so":     {"## A\nAPI-001 backend\nIt does.", []test{saying}, ""},
		"a requirement of nobody": {"## A\nAPI-002 backend\nIt does.\nby pkg/a.TestA", []test{there, saying}, "TestB proves API-001, which is not in the list"},
		"not yet, but tested":     {"## A\nAPI-001 planned\nIt will.", []test{saying}, `the list says "planned"`},
		"no sentence":             {"## A\nAPI-001 backend\nby pkg/a.TestA", []test{there}, "API-001 has no sentence"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := parse(c.list)
			require.NoError(t, err)
			if c.say == "" {
				require.NoError(t, l.prove(c.tests))
				return
			}
			require.ErrorContains(t, l.prove(c.tests), c.say)
		})
	}
}

func TestATestSaysWhatItProves(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a_test.go")
	require.NoError(t, os.WriteFile(file, []byte(`package a

// TestA does a thing.
//
// Proves API-001, API-002 and
// I5. It mentions API-003.
func TestA(t *testing.T) {
	t.Run("b", func(t *testing.T) {
		// Proves API-004.
	})
}

// Proves API-005.
var between = 1

// Proves API-006.
func helper() {}

func (s suite) TestOfASuite() {}

func Testify() {}

func FuzzB(f *testing.F) {}
`), 0o600))
	found, err := findTests(dir)
	require.NoError(t, err)
	require.Equal(t, []test{
		{file: "a_test.go", name: "TestA", proves: []string{"API-001", "API-002", "I5", "API-004"}},
		{file: "a_test.go", name: "FuzzB"},
	}, found)
}

func TestACitationLeadsSomewhere(t *testing.T) {
	l, err := parse("## A\nAPI-001 backend\nIt does.\nAPI-002 backend\nIt does.\n## B\nAPI-003 client\nThey do.\nI1 client\nNever.")
	require.NoError(t, err)
	for name, c := range map[string]struct{ file, content, say string }{
		"a requirement":                  {"a.go", "// It must (API-001).", ""},
		"a client's requirement":         {"a.go", "// They must (API-003).", ""},
		"a requirement that nobody made": {"a.go", "// It must (API-009).", `a.go:1: "API-009": no such requirement`},
		"somebody else's number":         {"a.go", "// A signature of ERC-191 and SHA-256.", ""},
		"an invariant":                   {"a.sql", "-- invariant I1", ""},
		"an invariant that is none":      {"a.sql", "-- invariant I12", `"I12"`},
		"a page":                         {"a.go", "// See docs/page.md.", ""},
		"an anchor":                      {"a.go", "// See docs/page.md#the-sweep-it-is.", ""},
		"an anchor that is stated":       {"a.go", "// See docs/page.md#here.", ""},
		"an anchor that is not there":    {"a.go", "\n// See docs/page.md#there.", `a.go:2: "docs/page.md#there": the page has no such anchor`},
		"a page that is not there":       {"a.go", "// See docs/design.md.", "no such page"},
		"a paper":                        {"a.go", "// As the\n// specification says.", `a.go:1: "the specification"`},
		"a section of a paper":           {"b.proto", "// One (section 4).", `"section 4"`},
		"a number of a list of faults":   {"a.go", "// It is refused (B12).", `"(B12)"`},
		"a section of a standard":        {"a.go", "// A vector (RFC 9420,\n// section 2.1).", ""},
		"a link":                         {"docs/b.md", "[a](page.md#here)", ""},
		"a link within a page":           {"docs/b.md", "# One two\n[a](#one-two)", ""},
		"a link to nowhere":              {"docs/b.md", "[a](page.md#nowhere)", "the page has no such anchor"},
		"a link to another site":         {"docs/b.md", "[a](https://example.org/a.md#b)", ""},
		"what nobody reads":              {"a.svg", "the specification", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(dir, "docs"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "docs/page.md"), []byte("# A page\n## The sweep: “it” is\n<a id=\"here\"></a>\n"), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.content), 0o600))
			err := citations(dir, l)
			if c.say == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.say)
		})
	}
}
