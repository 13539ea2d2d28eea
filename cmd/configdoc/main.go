// Command configdoc writes docs/configuration.md, the reference of every
// environment variable, from the configuration structs of the roles. What a
// variable means is the comment of its field.
//
//	go run ./cmd/configdoc -write    writes the file
//	go run ./cmd/configdoc -check    fails when it is not what would be written
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	write := flag.Bool("write", false, "write docs/configuration.md")
	check := flag.Bool("check", false, "fail when docs/configuration.md is not fresh")
	root := flag.String("root", ".", "top of the repository")
	flag.Parse()
	if err := run(*root, *write, *check); err != nil {
		fmt.Fprintln(os.Stderr, "configdoc:", err)
		os.Exit(1)
	}
}

// file is where the reference is, below the root.
const file = "docs/configuration.md"

func run(root string, write, check bool) error {
	if write == check {
		return errors.New("expected -write or -check")
	}
	rendered, err := render(root)
	if err != nil {
		return err
	}
	target := filepath.Join(root, file)
	if write {
		return os.WriteFile(target, rendered, 0o644)
	}
	written, err := os.ReadFile(target)
	if err != nil {
		return fmt.Errorf("read the reference: %w", err)
	}
	if !bytes.Equal(written, rendered) {
		return fmt.Errorf("%s is not what the structs say: run go run ./cmd/configdoc -write and commit the result", file)
	}
	return nil
}
