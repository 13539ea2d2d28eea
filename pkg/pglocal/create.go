package pglocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// dataVersion returns the major version that made a data directory, 0 when there is none.
func dataVersion(dataDir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dataDir, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the data directory: %w", err)
	}
	version, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read the version of the data directory: %w", err)
	}
	return version, nil
}

// createDatabase fills an empty directory.
func (s *Server) createDatabase(ctx context.Context) error {
	return s.fill(ctx, "creating a new PostgreSQL database", func(dir string) *exec.Cmd {
		args := []string{"-D", dir, "-U", superuser, "--auth=trust", "-E", "UTF8", "--locale=C", "--no-instructions"}
		if !s.options.Durable {
			args = append(args, "--no-sync")
		}
		return exec.CommandContext(ctx, s.options.Binaries.path("initdb"), args...)
	})
}

// fill creates the data directory by a tool unless it exists. The tool works in a directory of another name, so that one
// which was interrupted is not taken for a complete one.
func (s *Server) fill(ctx context.Context, step string, tool func(dir string) *exec.Cmd) error {
	dir := s.unfinishedDir()
	if err := removeAll(ctx, dir); err != nil {
		return err
	}
	version, err := dataVersion(s.dataDir())
	if err != nil || version != 0 {
		return err
	}
	s.progress("%s", step)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	if err := s.as.own(dir); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	if _, err := s.runTool(tool(dir)); err != nil {
		return err
	}
	if err := os.Rename(dir, s.dataDir()); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	return nil
}

// removeAll tries again while a program that was told to end still creates files.
func removeAll(ctx context.Context, dir string) error {
	var err error
	if poll(ctx.Done(), killWithin, func() bool { err = os.RemoveAll(dir); return err == nil }) {
		return nil
	}
	return fmt.Errorf("remove an unfinished data directory: %w", err)
}

// runTool runs one of the server programs to its end and returns what it printed. Its error holds the last line that
// the program wrote to its error output.
func (s *Server) runTool(cmd *exec.Cmd) (string, error) {
	s.as.prepare(cmd, s.options.Dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = killWithin
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s: %w: %s", filepath.Base(cmd.Path), err, lastLine(problems.String()))
	}
	return out.String(), nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
