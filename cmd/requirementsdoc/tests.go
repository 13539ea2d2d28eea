package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// test is a test function of the tree.
type test struct {
	file   string // from the root, with slashes
	name   string
	proves []string
}

// key names the test in requirements.txt.
func (t test) key() string { return path.Dir(t.file) + "." + t.name }

var (
	testName = regexp.MustCompile(`^(Test|Fuzz|Example)($|[^a-z])`)
	// proof is what a test says of itself, up to the end of the sentence.
	proof      = regexp.MustCompile(`\bProves ([^.]*)\.`)
	identifier = regexp.MustCompile(`\b([A-Z]+-\d{3}|I\d{1,2})\b`)
)

// skipped are the folders that hold nothing of ours.
var skipped = map[string]bool{".git": true, ".data": true, "bin": true, "node_modules": true, "testdata": true}

// findTests returns every test function below the root.
func findTests(root string) ([]test, error) {
	var tests []test
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && skipped[d.Name()] {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		relative, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		found, err := testsOf(file, filepath.ToSlash(relative))
		tests = append(tests, found...)
		return err
	})
	return tests, err
}

func testsOf(file, relative string) (tests []test, err error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, declared := range parsed.Decls {
		f, ok := declared.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !testName.MatchString(f.Name.Name) || f.Name.Name == "TestMain" {
			continue
		}
		t := test{file: relative, name: f.Name.Name}
		for _, comment := range parsed.Comments {
			if comment == f.Doc || comment.Pos() > f.Pos() && comment.End() < f.End() {
				t.proves = append(t.proves, proven(comment.Text())...)
			}
		}
		tests = append(tests, t)
	}
	return tests, nil
}

// proven are the requirements that a comment says are proved.
func proven(comment string) (ids []string) {
	for _, sentence := range proof.FindAllStringSubmatch(strings.ReplaceAll(comment, "\n", " "), -1) {
		ids = append(ids, identifier.FindAllString(sentence[1], -1)...)
	}
	return ids
}
