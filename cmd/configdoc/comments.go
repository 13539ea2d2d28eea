package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
)

// modulePrefix is in front of the folder in the import path of each package.
const modulePrefix = "github.com/xmtp-selfhosted/backend/"

// comments finds the comments of struct fields in the source.
type comments struct {
	root    string
	structs map[string]map[string]string // package path and type, field: comment
}

// of returns what the source says of a field: its own comment, or that of the
// field above when one comment stands for a group of lines.
func (c *comments) of(owner reflect.Type, field string) (string, error) {
	key := owner.PkgPath() + "." + owner.Name()
	if _, read := c.structs[key]; !read {
		if err := c.read(owner.PkgPath()); err != nil {
			return "", err
		}
	}
	fields, found := c.structs[key]
	if !found {
		return "", fmt.Errorf("the source of %s is not found", key)
	}
	return fields[field], nil
}

func (c *comments) read(path string) error {
	folder, ours := strings.CutPrefix(path, modulePrefix)
	if !ours {
		return fmt.Errorf("%s is not a package of this project", path)
	}
	files, err := filepath.Glob(filepath.Join(c.root, folder, "*.go"))
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(set, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse the source: %w", err)
		}
		for _, declaration := range parsed.Decls {
			types, isGeneric := declaration.(*ast.GenDecl)
			if !isGeneric || types.Tok != token.TYPE {
				continue
			}
			for _, spec := range types.Specs {
				named := spec.(*ast.TypeSpec)
				if structure, is := named.Type.(*ast.StructType); is {
					c.structs[path+"."+named.Name.Name] = fieldComments(set, structure)
				}
			}
		}
	}
	return nil
}

func fieldComments(set *token.FileSet, structure *ast.StructType) map[string]string {
	texts := map[string]string{}
	above, lastLine := "", 0
	for _, field := range structure.Fields.List {
		text := oneLine(field.Doc)
		if text == "" {
			text = oneLine(field.Comment)
		}
		line := set.Position(field.Pos()).Line
		if text == "" && line == lastLine+1 {
			text = above
		}
		above, lastLine = text, set.Position(field.End()).Line
		for _, name := range field.Names {
			texts[name.Name] = text
		}
	}
	return texts
}

func oneLine(group *ast.CommentGroup) string {
	return strings.Join(strings.Fields(group.Text()), " ")
}
